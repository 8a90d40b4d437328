"""Before distillation: demonstrations, supervised fine-tuning, the embedded models."""
