"""The page in a real browser: it renders, light and dark, wide and narrow, and the console stays silent."""

import html
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.report.made import write_run

from trimtab.report import write_comparison, write_report

BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine: the page is not looked at")


def browse(profile: Path, page: Path, *options: str) -> tuple[str, str]:
    """What headless Chromium prints, and what it logs of the page's console."""
    assert BROWSER is not None
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
        "--enable-logging=stderr", "--v=0", f"--user-data-dir={profile}", *options, page.as_uri(),
    ]  # fmt: skip
    environment = {**os.environ, "HOME": str(profile)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    said = "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)
    return done.stdout, said


def pixels(path: Path) -> list[tuple[int, ...]]:
    """A coarse look: every 20th pixel, as (red, green, blue)."""
    from matplotlib.image import imread

    image = imread(path)
    return [tuple(round(255 * float(part)) for part in pixel[:3]) for row in image[::20] for pixel in row[::20]]


NAMES = ["healthy", *(pytest.param(name, marks=pytest.mark.slow) for name in ("collapsing", "comparison"))]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("pages")
    folders = {kind: write_run(base / kind, kind) for kind in ("healthy", "collapsing")}
    _ = write_run(folders["healthy"] / "twin", "collapsing")
    made = {kind: write_report(folder) for kind, folder in folders.items()}
    return made | {"comparison": write_comparison(list(folders.values()), base / "comparison.html")}


@pytest.mark.parametrize("name", NAMES)
def test_the_page_renders_and_the_console_is_silent(name: str, pages: dict[str, Path], tmp_path: Path) -> None:
    shown, said = browse(tmp_path / "profile", pages[name], "--dump-dom")
    assert said == ""
    assert shown.count("<section") == pages[name].read_text(encoding="utf-8").count("<section")
    assert pages[name].stat().st_size < 2 * 1024 * 1024


def test_an_error_on_the_console_would_be_seen(tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    _ = page.write_text("<script>console.error('planted')</script>")
    assert "planted" in browse(tmp_path / "profile", page, "--dump-dom")[1]


@pytest.mark.parametrize(("scheme", "ground"), [("light", (251, 250, 248)), ("dark", (20, 23, 27))])
def test_it_is_drawn_in_light_and_in_dark(
    scheme: str, ground: tuple[int, ...], pages: dict[str, Path], tmp_path: Path
) -> None:
    """The page's own ground shows, and so does ink: many colours, not one."""
    picture = tmp_path / "picture.png"
    dark = ["--blink-settings=preferredColorScheme=0"] if scheme == "dark" else []
    _ = browse(tmp_path / "profile", pages["healthy"], *dark, f"--screenshot={picture}", "--window-size=1000,2400")
    seen = pixels(picture)
    assert seen[0] == ground
    assert len(set(seen)) > 20


def test_a_script_in_the_page_would_not_run(pages: dict[str, Path], tmp_path: Path) -> None:
    """If escaping ever failed, the page's own policy still stops it; its refusal is what the console then shows."""
    page = tmp_path / "planted.html"
    text = pages["healthy"].read_text(encoding="utf-8")
    _ = page.write_text(text.replace("</main>", "<script>document.title = 'ran'</script></main>"), encoding="utf-8")
    shown, said = browse(tmp_path / "profile", page, "--dump-dom")
    assert "<title>ran</title>" not in shown
    assert "Content Security Policy" in said


@pytest.mark.parametrize("name", NAMES)
def test_a_narrow_screen_is_not_left_to_scroll_sideways(name: str, pages: dict[str, Path], tmp_path: Path) -> None:
    """420 pixels wide, measured inside a frame, for a window cannot be so narrow. Tables scroll by themselves."""
    inner = re.sub(r"<meta http-equiv[^>]*>", "", pages[name].read_text(encoding="utf-8"))
    page = tmp_path / "frame.html"
    frame = f'<iframe id="f" width="420" height="6000" style="border: 0" srcdoc="{html.escape(inner)}"></iframe>'
    script = """<script>
        const f = document.getElementById("f")
        f.onload = () => { document.title = "width " + f.contentDocument.documentElement.scrollWidth }
    </script>"""
    _ = page.write_text(f"<!doctype html><title>none</title>{frame}{script}", encoding="utf-8")
    shown, _ = browse(tmp_path / "profile", page, "--dump-dom", "--virtual-time-budget=3000")
    assert re.findall(r"<title>(.*?)</title>", shown)[0] == "width 420"
