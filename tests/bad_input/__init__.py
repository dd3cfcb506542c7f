"""Bad and odd inputs by kind: what a person can hand to the library, and what a run file can say."""

from tests.bad_input import configurations, library

KINDS = {"library": library, "configuration": configurations}
