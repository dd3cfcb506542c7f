"""How the page of a check looks, on top of the style of all pages. Every status also has a letter."""

from trimtab.report.style import CSS as PAGE

CSS = (
    PAGE
    + """
:root {
  --bug: var(--bad); --hygiene: var(--warn); --convention: var(--first); --quiet: var(--faint);
  --mono: ui-monospace, "SF Mono", Menlo, "DejaVu Sans Mono", monospace;
}
main { max-width: 74rem; }
h1, h2, h3, td, th, p, dd { overflow-wrap: anywhere; }
h3 { margin: 0; font-size: 1rem; font-weight: 650; }
a { color: inherit; text-decoration-color: var(--line); text-underline-offset: .2em; }
a:hover { text-decoration-color: currentColor; }
a:focus-visible, summary:focus-visible { outline: 2px solid var(--first); outline-offset: 2px; }
header p.said { margin: 0 0 .3rem; font-size: 1.25rem; font-weight: 600; }
header p.said.bug { color: var(--bug); }
header p.said.suspect, header p.said.latent, header p.said.hygiene { color: var(--hygiene); }
header p.said.holds { color: var(--good); }
header p.lead { font-size: .95rem; max-width: none; }
.matrix { overflow: auto; max-height: 44rem; margin: 0 -.4rem; padding: 0 .4rem; }
.matrix table { width: auto; border-collapse: separate; border-spacing: 2px; font-size: .85rem; }
.matrix th, .matrix td { padding: 0; border: 0; background: var(--card); vertical-align: middle; }
.matrix th a { text-decoration: none; } .matrix th a:hover { text-decoration: underline; }
.matrix thead th { position: sticky; top: 0; z-index: 1; vertical-align: bottom; height: 1px; }
.matrix thead th a {
  display: inline-block; writing-mode: vertical-rl; transform: rotate(180deg);
  white-space: nowrap; padding: .5rem .15rem; line-height: 1.4;
}
.matrix tbody th {
  position: sticky; left: 0; text-align: right; padding-right: .6rem; min-width: 7.5rem; max-width: 22rem;
  line-height: 1.3;
}
.matrix tbody th small {
  display: block; color: var(--faint); font-weight: 400; max-width: 21rem; overflow: hidden; white-space: nowrap;
  text-overflow: ellipsis;
}
.matrix thead th:first-child { left: 0; z-index: 2; }
.cell {
  display: block; width: 1.7rem; height: 1.7rem; line-height: 1.7rem; text-align: center; border-radius: 5px;
  text-decoration: none; font: 600 .8rem/1.7rem var(--mono); color: var(--faint); border: 1px solid transparent;
}
i.cell { font-style: normal; }
.cell:hover { border-color: currentColor; }
.holds { color: var(--good); background: color-mix(in srgb, var(--good) 12%, var(--card)); }
.bug-cell { color: var(--card); background: var(--bug); }
.suspect-cell, .latent-cell, .hygiene-cell {
  color: var(--hygiene);
  background: color-mix(in srgb, var(--hygiene) 24%, var(--card));
}
.convention-cell { color: var(--convention); background: color-mix(in srgb, var(--convention) 20%, var(--card)); }
.waived { border: 1px dashed var(--line); }
.unexercised { border: 1px solid var(--line); }
.failed { color: var(--ink); border: 2px solid var(--bug); line-height: calc(1.7rem - 4px); }
.legend { display: flex; flex-wrap: wrap; gap: .5rem 1.2rem; padding: 0; margin: .4rem 0 1rem; list-style: none; }
.legend li { display: flex; align-items: center; gap: .45rem; color: var(--faint); font-size: .88rem; }
.badge {
  display: inline-block; padding: .05rem .5rem; border-radius: 5px; font-size: .8rem; font-weight: 600;
  margin-right: .6rem; vertical-align: .08em;
}
.card { border: 1px solid var(--line); border-left: 4px solid var(--hygiene); border-radius: 8px; margin: .7rem 0; }
.card.bug { border-left-color: var(--bug); }
.card > summary { padding: .6rem .9rem; color: var(--ink); list-style: none; }
.card > summary::-webkit-details-marker { display: none; }
.card > summary code { font-weight: 600; } .card > summary small { color: var(--faint); margin-left: .4rem; }
.card > summary h3 { margin: .25rem 0 0; font-size: 1.05rem; }
.card:not(.bug) > summary h3 { font-weight: 500; font-size: 1rem; }
.card > summary:hover h3 { text-decoration: underline; text-decoration-color: var(--line); }
.card > div { padding: 0 .9rem .7rem; scroll-margin-top: 6rem; }
.card > div > dl:first-child { margin-top: 0; }
.card:has(> :target) { outline: 2px solid var(--first); outline-offset: 3px; }
.changes { margin: 0; padding: 0; list-style: none; }
.card dl + dl, .finding dl + dl { margin-top: -.25rem; }
pre { background: var(--soft); border-radius: 6px; padding: .5rem .8rem; }
pre.command { white-space: pre-wrap; overflow-wrap: anywhere; }
pre.command::before { content: "$ "; color: var(--faint); }
.fold > summary { color: var(--ink); } .fold > summary h2 { display: inline; }
.fold > summary .note { margin-left: .6rem; }
.fold[open] > summary { margin-bottom: .8rem; }
section:has(> .fold:not([open])) { padding: .8rem 1.5rem; }
.finding > summary { color: var(--ink); padding: .55rem 0; }
.finding > summary code { font-weight: 600; }
.finding { border-top: 1px solid var(--line); margin: 0; }
.finding:has(> :target) > summary, .check:target {
  outline: 2px solid var(--first); outline-offset: 4px; border-radius: 4px;
}
.finding > div { padding: .1rem 0 1rem 1.1rem; scroll-margin-top: 4rem; }
.finding p { margin: .2rem 0 .7rem; max-width: 48rem; }
.what { font-size: 1.05rem; }
dl { display: grid; grid-template-columns: 7rem minmax(0, 1fr); gap: .35rem 1rem; margin: .6rem 0; }
dt { color: var(--faint); } dd { margin: 0; }
.scroll { margin: .3rem 0 .8rem; }
.numbers { width: auto; font-family: var(--mono); font-size: .82rem; }
.numbers th, .numbers td { padding: .22rem .55rem; border: 1px solid var(--line); white-space: nowrap; }
.numbers tr:last-child > * { border-bottom: 1px solid var(--line); }
.numbers td, .numbers .at { text-align: right; }
.numbers .apart {
  font-weight: 700; color: var(--bug); background: color-mix(in srgb, var(--bug) 13%, var(--card));
  text-decoration: underline; text-underline-offset: .2em;
}
.numbers .tokens { text-align: left; }
.t { display: inline-block; min-width: 2.9rem; text-align: right; padding: 0 .25rem; }
.k { display: inline-block; min-width: 1.5rem; text-align: center; border-radius: 4px; margin-right: 2px; }
.k-a { color: var(--card); background: var(--first); }
.k-p { border: 1px solid var(--line); color: var(--faint); }
.k-o { border: 1px dashed var(--second); color: var(--second); }
.t-quiet { color: var(--faint); opacity: .75; }
.note { color: var(--faint); font-size: .88rem; }
.checks { min-height: 3.4rem; }
.check { display: none; margin: 1rem 0 .3rem; scroll-margin-top: 60vh; }
.check:target { display: block; }
.checks:has(:target) > .hint { display: none; }
.finding + h3 { margin-top: 1rem; }
.plain { padding-left: 1.2rem; margin: .4rem 0; } .plain li { margin: .2rem 0; }
.law { scroll-margin-top: 1rem; border-top: 1px solid var(--line); padding: .7rem 0 .2rem; }
.law:target h3 { color: var(--first); }
.source { border-top: 1px solid var(--line); padding: .7rem 0 .2rem; scroll-margin-top: 1rem; }
.source:target h3 { color: var(--first); }
@media (max-width: 40rem) {
  main { padding: 1.5rem .8rem 3rem; }
  section { padding: 1rem .9rem .8rem; }
  h1 { font-size: 1.5rem; }
  .matrix { max-height: 34rem; }
  .matrix tbody th { max-width: 9rem; font-size: .78rem; text-align: left; }
  .finding > div { padding-left: 0; }
  dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .45rem; }
}
@media print { .check { display: none; } .matrix { max-height: none; overflow: visible; } }
"""
)
