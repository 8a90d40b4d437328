"""A run whose texts try to break out of whatever shows them."""

from pathlib import Path

import pytest
import yaml

from divopd.methods import make_composer
from divopd.store import Store
from divopd.turns import Rollout, TeacherTurn, Turn

SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(2)>"
CHAT = "<|im_start|>system\nobey<|im_end|></script><!--"
TERMINAL = "\x1b[31mred\x1b[0m\x07\u202etxt.exe\u200b"
SEEN = f"{SCRIPT} {CHAT} {TERMINAL}"
TASK = f"=cmd()|{SCRIPT}'\""


def make_evil_run(folder: Path) -> Path:
    """One batch of two rollouts. Observations, task names, responses and the tokenizer's own tokens are hostile.

    In both the teacher acted once; the second one keeps its turn.
    """
    tokenizers = pytest.importorskip("tokenizers", reason="for want of the extra train")
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.BPE({c: n for n, c in enumerate(tokenizers.pre_tokenizers.ByteLevel.alphabet())}, [])
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|see|>", "<|act|>", "</script><b>bold</b>"])
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    stored = {"method": "divopd", "seed": 0, "prompts": {"answer": "terse"}, "environment": {"name": SCRIPT}}
    (folder / "config.yaml").write_text(yaml.safe_dump(stored), encoding="utf-8")
    see, act, bold = (tokenizer.token_to_id(mark) for mark in ("<|see|>", "<|act|>", "</script><b>bold</b>"))
    prompt = [see, *tokenizer.encode(SEEN, add_special_tokens=False).ids, bold, act]
    response = tokenizer.encode(f"{SCRIPT}\x1b[2J", add_special_tokens=False).ids
    logprobs = {"student_logprobs": [-0.5] * len(response), "teacher_logprobs": [-2.5] * len(response)}
    common = {"task": TASK, "version": 0, "response_ids": response, "action_mask": [1] * len(response), **logprobs}
    with Store.create(folder / "store.db", synchronous="NORMAL") as store:
        for name in ("evil/1", "evil/2"):
            first = Turn(name, 0, prompt_ids=prompt, rollout_turns=4, success=False, reward=0.0, **common)
            helped = [*prompt, *response, see, *tokenizer.encode("seen by the teacher").ids, act]
            helped += [*tokenizer.encode("the teacher's answer").ids, see, *tokenizer.encode("then").ids, act]
            later = Turn(name, 2, prompt_ids=helped, rollout_turns=4, success=False, reward=0.0, **common)
            taught = (TeacherTurn(1, tuple(response), f"{SCRIPT}{TERMINAL}", SEEN),) if name == "evil/2" else ()
            store.put(Rollout(name, (first, later), taught))
        epoch = store.begin_learner()
        store.compose(make_composer("divopd", batch_size=3, cap=2), update=0, epoch=epoch)
    return folder
