"""History → prompt, response → action. Environments know nothing of prompts, and policies nothing of environments."""

from divopd.prompts.codec import Codec
from divopd.prompts.conversation import Conversation, Prompt, Reader
from divopd.prompts.style import PromptStyle, style_for

__all__ = ["Codec", "Conversation", "Prompt", "PromptStyle", "Reader", "style_for"]
