// An agent in JavaScript, without a package: it guesses a number from 1 to 20 with hints.
//
//   divopd train examples/node_agent/train.yaml --out runs/node-agent
//
// Nothing in it knows divopd: an address, a key, a task file and an outcome file are all that it is given.
import { readFileSync, writeFileSync } from "node:fs";

const { OPENAI_BASE_URL, OPENAI_API_KEY, TASK_FILE, OUTCOME_FILE } = process.env;
const MOST_GUESSES = 5;

async function complete(messages) {
  const answer = await fetch(`${OPENAI_BASE_URL}/chat/completions`, {
    method: "POST",
    headers: { "Content-Type": "application/json", Authorization: `Bearer ${OPENAI_API_KEY}` },
    body: JSON.stringify({ model: "student", messages }),
  });
  if (!answer.ok) throw new Error(`${answer.status}: ${await answer.text()}`);
  return (await answer.json()).choices[0].message.content ?? "";
}

const { number } = JSON.parse(readFileSync(TASK_FILE, "utf8"));
const messages = [{ role: "user", content: "Guess my number from 1 to 20. Answer with a number." }];
let success = false;
for (let guess = 0; guess < MOST_GUESSES && !success; guess += 1) {
  const said = await complete(messages);
  const found = said.match(/\d+/);
  success = found !== null && Number(found[0]) === number;
  const hint = found === null ? "That was no number." : Number(found[0]) < number ? "It is larger." : "It is smaller.";
  messages.push({ role: "assistant", content: said }, { role: "user", content: hint });
}
writeFileSync(OUTCOME_FILE, JSON.stringify({ success, reward: success ? 1 : 0 }));
