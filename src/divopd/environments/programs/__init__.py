"""Any agent program as a rollout: it asks, and the student answers (specification §6.6).

A program is an environment turned inside out. It is started for one rollout and talks to an endpoint on this machine
as it would to any OpenAI-compatible server; every chat completion that it asks for is a turn.
"""
