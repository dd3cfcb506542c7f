"""An OpenEnv environment for tests: write digits, three times; every step pays, and the last one is done."""

from typing import Any

from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app


class Write(Action):
    text: str


class Shown(Observation):
    said: str = ""


class Digits(Environment[Write, Shown, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self.held = State(step_count=0)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Shown:
        self.held = State(step_count=0)
        return Shown(said=f"digits {(seed or 0) % 10}")

    def step(self, action: Write, timeout_s: float | None = None, **kwargs: Any) -> Shown:
        self.held.step_count += 1
        share = sum(one.isdigit() for one in action.text) / max(1, len(action.text))
        return Shown(said="more", reward=share / 3, done=self.held.step_count == 3)

    @property
    def state(self) -> State:
        return self.held


def serve():
    """The same environment as a server's application."""
    return create_fastapi_app(Digits, Write, Shown, max_concurrent_envs=128)
