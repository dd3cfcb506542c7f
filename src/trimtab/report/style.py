"""How pages look: one style sheet, light and dark, system fonts, nothing fetched."""

CSS = """
:root {
  color-scheme: light dark;
  --page: #fbfaf8; --card: #ffffff; --ink: #1c1f24; --faint: #6b7280; --line: #e4e2dd;
  --first: #0f6e84; --second: #c4622d; --third: #4f8a3c;
  --warn: #8a5a00; --warn-card: #fff6e0; --good: #2f7d4f; --bad: #b3372f;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14171b; --card: #1b1f24; --ink: #e8e6e1; --faint: #98a1ad; --line: #2d333b;
    --first: #5cc3d6; --second: #f0935a; --third: #93c97d;
    --warn: #f2c266; --warn-card: #2c2514; --good: #7fd0a0; --bad: #f08a80;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif;
}
main { max-width: 53rem; margin: 0 auto; padding: 3rem 1.25rem 5rem; }
header p.over { margin: 0; color: var(--faint); font-size: .875rem; }
h1 { margin: .15rem 0 .4rem; font-size: 2rem; line-height: 1.2; letter-spacing: -.015em; font-weight: 650; }
header p.lead { margin: 0; font-size: 1.1rem; color: var(--faint); max-width: 42rem; }
.tiles {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .75rem; margin: 1.75rem 0 2rem;
}
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: .8rem 1rem; }
.tile b { display: block; font-size: 1.5rem; font-weight: 650; font-variant-numeric: tabular-nums; }
.tile span { color: var(--faint); font-size: .85rem; }
.tile.main b { color: var(--first); }
section {
  margin: 0 0 1.25rem; padding: 1.35rem 1.5rem 1.1rem;
  background: var(--card); border: 1px solid var(--line); border-radius: 12px;
}
h2 { margin: 0 0 .3rem; font-size: 1.15rem; font-weight: 650; }
section > p { margin: 0 0 .8rem; max-width: 44rem; }
svg { display: block; width: 100%; height: auto; font-family: inherit; }
.warnings { background: var(--warn-card); border-color: transparent; }
.warnings h2 { color: var(--warn); }
.warnings ul { margin: .3rem 0 .2rem; padding-left: 1.2rem; }
.bar { display: flex; height: 14px; border-radius: 7px; overflow: hidden; margin: .4rem 0 .6rem; gap: 2px; }
.bar i { display: block; }
.key {
  display: flex; flex-wrap: wrap; gap: .2rem 1.4rem; padding: 0; margin: .5rem 0 .3rem;
  list-style: none; color: var(--faint); font-size: .9rem;
}
.key i { display: inline-block; width: .7rem; height: .7rem; border-radius: 3px; margin-right: .45rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; }
th, td { text-align: left; padding: .4rem .9rem .4rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
tr:last-child > * { border-bottom: 0; }
th { font-weight: 500; color: var(--faint); }
td.code, code { font-family: ui-monospace, "SF Mono", Menlo, "DejaVu Sans Mono", monospace; font-size: .88em; }
td small { display: block; color: var(--faint); font-size: .85rem; }
.right { color: var(--good); } .wrong { color: var(--bad); }
details { margin: .4rem 0; } summary { cursor: pointer; color: var(--faint); }
pre {
  overflow-x: auto; margin: .6rem 0;
  font: .82rem/1.5 ui-monospace, "SF Mono", Menlo, "DejaVu Sans Mono", monospace;
}
@media print { body { background: none; } section, .tile { break-inside: avoid; } }
"""
