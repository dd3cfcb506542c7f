"""How pages look: one style sheet, light and dark, with system fonts and without downloads."""

CSS = """
:root {
  color-scheme: light dark;
  --page: #fbfaf8; --card: #ffffff; --ink: #1c1f24; --faint: #667080; --line: #e4e2dd; --soft: #f4f2ee;
  --first: #0f6e84; --second: #c4622d; --third: #4f8a3c; --fourth: #7b57b2; --fifth: #b03a6b; --sixth: #8a7416;
  --warn: #b07700; --warn-card: #fff6e0; --good: #2f7d4f; --bad: #b3372f;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14171b; --card: #1b1f24; --ink: #e8e6e1; --faint: #9aa3af; --line: #2d333b; --soft: #22272e;
    --first: #5cc3d6; --second: #f0935a; --third: #93c97d; --fourth: #b79af0; --fifth: #f089b4; --sixth: #d8c46a;
    --warn: #f2c266; --warn-card: #2c2514; --good: #7fd0a0; --bad: #f08a80;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif;
  overflow-wrap: break-word;
}
main { max-width: 53rem; margin: 0 auto; padding: 3rem 1.25rem 5rem; }
a { color: var(--first); text-underline-offset: .15em; }
main > header { margin-bottom: 1.75rem; }
header p.over { margin: 0; color: var(--faint); font-size: .875rem; }
h1 { margin: .15rem 0 .4rem; font-size: 2rem; line-height: 1.2; letter-spacing: -.015em; font-weight: 650; }
header p.lead { margin: 0; font-size: 1.1rem; color: var(--faint); max-width: 42rem; }
.asks, .tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: .75rem; }
.asks { margin: 0 0 .75rem; }
.tiles { grid-template-columns: repeat(auto-fit, minmax(8rem, 1fr)); margin: 0 0 2rem; }
.ask, .tile { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: .75rem 1rem; }
.ask { color: inherit; text-decoration: none; border-left: 4px solid var(--line); }
.ask:hover, .ask:focus-visible { border-color: var(--first); }
.ask.better, .ask.fine, .ask.corrected { border-left-color: var(--third); }
.ask.watch, .ask.same { border-left-color: var(--warn); }
.ask.fault, .ask.worse { border-left-color: var(--bad); }
.ask span, .tile span { display: block; color: var(--faint); font-size: .85rem; }
.ask b { font-weight: 650; font-size: .95rem; line-height: 1.35; display: block; }
.tile b { display: block; font-size: 1.35rem; font-weight: 650; font-variant-numeric: tabular-nums; }
.tile.main b { color: var(--first); }
section {
  margin: 0 0 1.25rem; padding: 1.35rem 1.5rem 1.1rem; scroll-margin-top: 1rem;
  background: var(--card); border: 1px solid var(--line); border-radius: 12px;
}
h2 { margin: 0 0 .3rem; font-size: 1.15rem; font-weight: 650; }
section > p { margin: 0 0 .8rem; max-width: 44rem; }
p.note { color: var(--faint); font-size: .85rem; margin: .5rem 0 .2rem; }
.figure svg { display: block; width: 100%; height: auto; font-family: inherit; overflow: visible; }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .4rem 1rem; }
.panels .figure { max-width: 26rem; }
.warnings { background: var(--warn-card); border-color: transparent; }
.warnings h2 { color: var(--warn); }
.warnings ul { margin: .3rem 0 .2rem; padding-left: 1.2rem; }
.bar { display: flex; height: 14px; border-radius: 7px; overflow: hidden; margin: .4rem 0 .6rem; gap: 2px; }
.key {
  display: flex; flex-wrap: wrap; gap: .2rem 1.4rem; padding: 0; margin: .5rem 0 .3rem;
  list-style: none; color: var(--faint); font-size: .9rem;
}
.key i, .swatch { display: inline-block; width: .7rem; height: .7rem; border-radius: 3px; margin-right: .45rem; }
.check {
  display: grid; grid-template-columns: 13.5rem 6rem 1fr; gap: .1rem 1rem; align-items: baseline;
  padding: .45rem 0; border-top: 1px solid var(--line);
}
.check:first-child { border-top: 0; }
.check b { font-weight: 500; }
.check .sign { display: inline-block; width: 1.4rem; font-weight: 700; color: var(--third); }
.check.watch .sign { color: var(--warn); } .check.fault .sign { color: var(--bad); }
.check.unknown, .check.unknown .sign { color: var(--faint); }
.check .said { color: var(--faint); font-size: .9rem; }
.check.watch .said, .check.fault .said { color: var(--ink); }
.strip {
  display: flex; height: 9px; border-radius: 5px; overflow: hidden; background: var(--soft);
  margin-top: .55rem; align-self: start;
}
.strip:empty { background: none; }
.strip .fine { background: var(--third); opacity: .55; }
.strip .corrected { background: var(--first); opacity: .55; }
.strip .watch { background: var(--warn); } .strip .fault { background: var(--bad); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; }
th, td { text-align: left; padding: .4rem .9rem .4rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
tr:last-child > * { border-bottom: 0; }
th { font-weight: 500; color: var(--faint); }
.numbers td, .numbers th { white-space: nowrap; font-variant-numeric: tabular-nums; font-size: .88rem; }
td.code, code { font-family: ui-monospace, "SF Mono", Menlo, "DejaVu Sans Mono", monospace; font-size: .88em; }
td.code { white-space: pre-wrap; overflow-wrap: anywhere; min-width: 7rem; }
td small { display: block; color: var(--faint); font-size: .85rem; }
.right { color: var(--good); } .wrong { color: var(--bad); }
.episodes { display: grid; gap: .9rem; }
article { border: 1px solid var(--line); border-radius: 10px; overflow: hidden; }
article header { padding: .45rem .9rem; background: var(--soft); color: var(--faint); font-size: .85rem; }
.turn { display: grid; grid-template-columns: 6.2rem 1fr; gap: .6rem; padding: .35rem .9rem; align-items: baseline; }
.turn span { color: var(--faint); font-size: .8rem; }
.turn pre { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; min-width: 0; }
.turn pre span.left-out, .left-out { color: var(--faint); }
.turn.environment { background: var(--soft); border-left: 3px solid var(--fourth); font-style: italic; }
.turn.prompt pre { color: var(--faint); }
details { margin: .4rem 0; } summary { cursor: pointer; color: var(--faint); }
.help summary { color: var(--ink); }
.help div { padding: .2rem 0 .6rem 1.1rem; border-left: 3px solid var(--line); margin: .4rem 0 .8rem; }
.help div:target { border-left-color: var(--first); }
.help p { margin: .3rem 0; max-width: 44rem; }
.help p.place { color: var(--faint); font-size: .85rem; }
pre {
  overflow-x: auto; margin: .6rem 0;
  font: .82rem/1.5 ui-monospace, "SF Mono", Menlo, "DejaVu Sans Mono", monospace;
}
@media (max-width: 640px) {
  main { padding: 1.5rem .75rem 3rem; }
  h1 { font-size: 1.5rem; }
  section { padding: 1.1rem 1rem .9rem; }
  .asks { grid-template-columns: 1fr 1fr; } .tiles { grid-template-columns: repeat(auto-fit, minmax(6.5rem, 1fr)); }
  .tile b { font-size: 1.15rem; }
  .wide svg text { font-size: 17px !important; }
  .check { grid-template-columns: 1fr 5rem; } .check .said { grid-column: 1 / -1; }
  .turn { grid-template-columns: 1fr; gap: 0; }
}
@media print { body { background: none; } section, .tile { break-inside: avoid; } }
"""
