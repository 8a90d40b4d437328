"""What a run will need and cost, before it starts."""
