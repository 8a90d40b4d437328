"""A tool-calling agent in plain Python with OpenAI's client: it finds out what a shopping list costs.

    divopd train examples/tool_agent/train.yaml --out runs/tool-agent
    divopd play "command python examples/tool_agent/agent.py" --set tasks=examples/tool_agent/test.jsonl --policy MODEL

Nothing in it knows divopd: it reads its task, talks to whatever OPENAI_BASE_URL and OPENAI_API_KEY name, and writes
down whether it succeeded. Against another server it runs as it is.
"""

import json
import os
from typing import Any

from openai import BadRequestError, OpenAI

SYSTEM = "You find out what a shopping list costs. Ask for the price of every item, then submit the sum."
MOST_CALLS = 8  # of the model
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "price",
            "description": "The price of one item.",
            "parameters": {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "submit",
            "description": "Submit the sum. This ends the task.",
            "parameters": {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]},
        },
    },
]


def act(task: dict, client: OpenAI) -> dict:
    """One task: the outcome, with a reward for every price that was asked for."""
    messages: list[Any] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "List: " + ", ".join(task["prices"])},
    ]
    asked = set()
    for _ in range(MOST_CALLS):
        try:
            completion = client.chat.completions.create(model="student", messages=messages, tools=TOOLS)
        except BadRequestError:  # the conversation has grown too long for the student
            break
        message: Any = completion.choices[0].message
        messages.append(message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}))
        if not message.tool_calls:
            messages.append({"role": "user", "content": "Call a tool."})
        for call in message.tool_calls or []:
            if call.type != "function":
                continue
            arguments = json.loads(call.function.arguments)
            if call.function.name == "submit":
                success = arguments.get("sum") == sum(task["prices"].values())
                return {"success": success, "reward": 1.0 if success else 0.5 * len(asked) / len(task["prices"])}
            item = arguments.get("item")
            asked |= {item} & set(task["prices"])
            result = str(task["prices"].get(item, "There is no such item."))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return {"success": False, "reward": 0.5 * len(asked) / len(task["prices"])}


def main() -> None:
    with open(os.environ["TASK_FILE"], encoding="utf-8") as file:
        task = json.load(file)
    outcome = act(task, OpenAI())  # the address and the key are in the environment
    with open(os.environ["OUTCOME_FILE"], "w", encoding="utf-8") as file:
        json.dump(outcome, file)


if __name__ == "__main__":
    main()
