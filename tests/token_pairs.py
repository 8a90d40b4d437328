"""A student and a teacher as Qwen3 and Qwen2.5 are, but small: the student's tokenizer has two marks more.

Both embeddings are padded, so both have rows for the ids of the marks. The student's template writes an empty thought
unless it is told not to; the teacher's names the roles.
"""

from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken

from divopd.models.tiny import TinySize, build_model, build_tokenizer

MARKS = ("<think>", "</think>")
WORDS = "open the door go left right look around you see a fridge kitchen"
ROWS = 384  # of both embeddings; the tokenizers have fewer
SIZE = TinySize(hidden=32, layers=1, heads=2, key_value_heads=1, feed_forward=64, context=1024)
STUDENT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message.role == 'assistant' -%}{{ '<|act|>' + message.content + '<|end|>' }}"
    "{%- else -%}{{ '<|see|>' + message.content }}{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|act|>' }}"
    "{%- if enable_thinking is defined and not enable_thinking -%}{{ '<think></think>' }}{%- endif -%}{%- endif -%}"
)
TEACHER_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message.role == 'assistant' -%}{{ 'robot<|act|>' + message.content + '<|end|>' }}"
    "{%- else -%}{{ message.role + '<|see|>' + message.content }}{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ 'robot<|act|>' }}{%- endif -%}"
)


def student_tokenizer() -> Any:
    tokenizer = build_tokenizer([WORDS, WORDS])
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in MARKS])
    tokenizer.chat_template = STUDENT_TEMPLATE
    return tokenizer


def teacher_tokenizer() -> Any:
    tokenizer = build_tokenizer([WORDS, WORDS])
    tokenizer.chat_template = TEACHER_TEMPLATE
    return tokenizer


def mark_ids() -> list[int]:
    """What the student's tokenizer alone has."""
    return [student_tokenizer().get_vocab()[mark] for mark in MARKS]


def fond_student() -> Any:
    """A student that would nearly always say one of its marks, or an id that nobody has."""
    model = build_model(student_tokenizer(), seed=0, size=SIZE)
    model.resize_token_embeddings(ROWS, mean_resizing=False)
    with torch.no_grad():
        fond = [*mark_ids(), ROWS - 1]
        mean = model.model.norm.weight.new_zeros(SIZE.hidden)
        hidden = model.model(torch.arange(40)[None]).last_hidden_state[0]
        mean += hidden.mean(0)
        model.get_input_embeddings().weight[fond] = 0.5 * mean  # the head is the same matrix
    return model


def save_pair(folder: Path) -> Path:
    """Write `student` and `teacher`."""
    model = fond_student()
    model.save_pretrained(folder / "student")
    student_tokenizer().save_pretrained(folder / "student")
    teacher = build_model(teacher_tokenizer(), seed=1, size=SIZE)
    teacher.resize_token_embeddings(ROWS, mean_resizing=False)
    teacher.save_pretrained(folder / "teacher")
    teacher_tokenizer().save_pretrained(folder / "teacher")
    return folder
