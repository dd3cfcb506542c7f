"""An OpenEnv environment with an MCP tool, for tests: the tool doubles a number, and a right call pays."""

from typing import Any

from fastmcp import FastMCP
from openenv.core.env_server import Observation, State
from openenv.core.env_server.mcp_environment import MCPEnvironment


class Doubles(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        server = FastMCP("doubles")

        @server.tool
        def double(number: int) -> int:
            """Twice the number."""
            return 2 * number

        super().__init__(server)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Observation:
        return Observation(metadata={})

    def _step_impl(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        return Observation(done=True, reward=0.0)

    @property
    def state(self) -> State:
        return State()
