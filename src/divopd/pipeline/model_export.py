"""A run's student as a model of its own, in the ordinary Hugging Face format that transformers and vLLM load."""

import shutil
from pathlib import Path
from typing import Any

from divopd.config import Config
from divopd.errors import InputError
from divopd.models.taught import Taught, write_taught
from divopd.models.transformers_policy import TransformersPolicy
from divopd.prompts import Codec

CARD = "README.md"  # where model hubs look for it


def export_model(policy: TransformersPolicy, config: Config, folder: Path, *, card: str, replace: bool) -> None:
    """Write the policy with its tokenizer, chat template and card as FOLDER, whole or not at all; adapters are merged.

    The folder also says the form of answers in which the model was trained (divopd.json), so that `divopd evaluate`
    and `divopd train` use it as it is. With `replace` a model that lies there is replaced, nothing else is.
    """
    refuse_target(folder, replace=replace)
    partial, old = (folder.with_name(f".{folder.name}.{end}") for end in ("partial", "replaced"))
    try:
        shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
        partial.mkdir(parents=True)
        policy.save(partial)
        _generation(policy, config).save_pretrained(partial)
        style = config.prompts
        write_taught(partial, Taught(config.environment.name, style.answer, style.actions))
        (partial / CARD).write_text(card, encoding="utf-8")
        if folder.exists():
            folder.rename(old)
        partial.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise InputError(f"{folder}: the model cannot be written ({error}); nothing was changed") from None


def refuse_target(folder: Path, *, replace: bool) -> None:
    """A folder that is there is replaced only on demand, and only if it is a model and not a run."""
    if not folder.exists():
        return
    is_model = (folder / "config.json").is_file() and not (folder / "config.yaml").exists()
    if not replace or not is_model:
        raise InputError(f"{folder} exists already; choose another name, or replace a model's folder with --force")


def _generation(policy: TransformersPolicy, config: Config) -> Any:
    """How it was evaluated: plain sampling at that temperature, and answers that end where the chat template ends them.

    The defaults of transformers would sample from the 50 likeliest tokens only.
    """
    from transformers import GenerationConfig

    stop = Codec(policy.tokenizer, template=config.prompts.template).stop
    stops = dict.fromkeys([stop, *policy.stop_ids])
    sampling: dict[str, Any] = {"do_sample": False}
    if config.evaluation.temperature > 0:
        sampling = {"do_sample": True, "temperature": config.evaluation.temperature, "top_k": 0, "top_p": 1.0}
    return GenerationConfig(
        eos_token_id=list(stops),
        pad_token_id=policy.tokenizer.pad_token_id,
        bos_token_id=policy.tokenizer.bos_token_id,
        max_new_tokens=config.explorer.max_response_tokens,
        **sampling,
    )
