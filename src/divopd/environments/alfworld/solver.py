"""Solving a game with full knowledge of it: the expert, with a memory in which nothing is left to find."""

from divopd.environments.alfworld.engine import House
from divopd.environments.alfworld.expert import decide
from divopd.environments.alfworld.memory import Memory
from divopd.environments.alfworld.problem import read_problem


def solve(problem_text: str, *, horizon: int) -> list[str]:
    """Actions that win the game, checked by playing them; empty if they are not found, or if it starts won."""
    problem = read_problem(problem_text)
    house, actions = House(problem), []
    memory = Memory(
        goal=problem.goal,
        receptacles=list(problem.receptacles),
        contents={
            name: [problem.objects[o] for o in sorted(things)]
            for name, things in zip(problem.receptacles, problem.contents, strict=True)
        },
        closed={
            problem.receptacles[r] for r in problem.receptacles_that["openable"] - problem.receptacles_that["opened"]
        },
    )
    while not house.is_won() and len(actions) < horizon:
        action = decide(memory)
        memory.update(action, house.act(action) or "Nothing happens.")
        actions.append(action)
    return actions if house.is_won() else []
