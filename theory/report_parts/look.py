"""How the report looks: on a wide screen, on a phone, in the dark, and on paper. One stylesheet, no font from elsewhere."""

STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --paper: #fdfdfb; --soft: #5c5c5c; --line: #d8d6d0; --tint: #f1f0ea;
  --good: #12633a; --bad: #a3211b; --note: #7a4b00; --link: #1d4f91; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e4df; --paper: #17181a; --soft: #a5a39d; --line: #3a3b3e;
  --tint: #222427; --good: #6fcf97; --bad: #ff8b80; --note: #e8b762; --link: #8ab8f0; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-padding-top: 1rem; }
body { margin: 0 auto; padding: 1.2rem 1rem 4rem; max-width: 62rem; background: var(--paper); color: var(--ink);
  font: 1.03rem/1.55 Charter, "Bitstream Charter", "Sitka Text", Cambria, Georgia, serif; overflow-wrap: break-word; }
h1, h2, h3, h4, nav, table, summary, .badges, dl, figcaption { font-family: system-ui, "Segoe UI", Roboto, "Helvetica Neue",
  Arial, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: .5rem 0 .3rem; }
h2 { font-size: 1.3rem; margin: 3rem 0 .6rem; padding-top: .5rem; border-top: 2px solid var(--ink); }
h3 { font-size: 1.08rem; line-height: 1.35; margin: 0 0 .4rem; }
h4 { font-size: .78rem; letter-spacing: .06em; text-transform: uppercase; color: var(--soft); margin: 1.2rem 0 .25rem; }
p { margin: .4rem 0 .8rem; }
p, ol, ul, .statement, .warning { max-width: 48rem; }
td.line { min-width: 17rem; }
a { color: var(--link); text-underline-offset: .15em; } a.ref { color: inherit; text-decoration-style: dotted; }
ol, ul { margin: .3rem 0 .8rem; padding-left: 1.5rem; }
code { font: .88em ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
pre { background: var(--tint); padding: .7rem .9rem; overflow-x: auto; border-radius: 4px; }
pre code { overflow-wrap: normal; }
sub, sup { line-height: 0; font-size: .72em; }
nav ul { list-style: none; padding: 0; margin: .4rem 0; }
nav li { margin: .25rem 0; }
nav .ids a { display: inline-block; padding: .25rem .3rem .25rem 0; min-width: 2.4rem; }
.lede { font-size: 1.1rem; }
.soft { color: var(--soft); }
.good { color: var(--good); } .bad { color: var(--bad); font-weight: 700; } .note { color: var(--note); }
.warning { border-left: 4px solid var(--note); background: var(--tint); padding: .5rem .9rem; margin: .8rem 0; }
.statement { border-left: 4px solid var(--ink); background: var(--tint); padding: .6rem .9rem; margin: .4rem 0 .8rem; }
article { margin: 0 0 2.6rem; padding-top: 1.2rem; border-top: 1px solid var(--line); }
.badges { font-size: .85rem; margin: 0 0 .6rem; } .badges span { margin-right: 1rem; white-space: nowrap; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; font-size: .85rem; margin: .6rem 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
table { border-collapse: collapse; font-size: .85rem; line-height: 1.4; width: 100%; margin: .4rem 0 1rem;
  font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; border-bottom: 1.5px solid var(--ink);
  padding: .3rem .7rem .3rem 0; vertical-align: bottom; }
td { border-bottom: 1px solid var(--line); padding: .35rem .7rem .35rem 0; vertical-align: top; }
th.number, td.number { text-align: right; white-space: nowrap; }
td p { margin: 0; } td code { overflow-wrap: normal; }
.scroll { overflow-x: auto; } .scroll table { width: auto; min-width: 60%; } .scroll td { white-space: nowrap; }
.scroll td:last-child { white-space: normal; min-width: 12rem; } .scroll td.number { min-width: 0; white-space: nowrap; }
details { margin: .5rem 0 1rem; } summary { cursor: pointer; padding: .35rem 0; font-weight: 600; font-size: .92rem; }
.step { display: grid; grid-template-columns: 1.6rem minmax(0, 1fr); padding: .35rem 0; border-bottom: 1px dotted var(--line); }
.step .why { font-size: .92rem; color: var(--soft); margin: 0; }
.formula { overflow-x: auto; overflow-y: hidden; padding: .3rem 0; }
math { font-family: "STIX Two Math", "Latin Modern Math", "Cambria Math", "DejaVu Math TeX Gyre", math; }
math[display="block"] { margin: 0; text-align: left; display: block math; width: max-content; }
.chain { margin: .8rem 0; }
figure { margin: 1rem 0; } figcaption { font-size: .85rem; color: var(--soft); max-width: 40rem; }
figure .sheet { background: #fff; padding: .5rem; border-radius: 4px; width: fit-content; max-width: 100%; overflow-x: auto; }
figure img { display: block; width: 100%; max-width: 26rem; height: auto; }
figure.wide img { width: 100%; min-width: 42rem; max-width: none; }
@media (max-width: 40rem) {
  body { font-size: 1rem; padding-inline: .8rem; }
  table.stack, .stack tbody, .stack tr, .stack td.line { display: block; width: 100%; min-width: 0; }
  .stack thead { position: absolute; left: -9999px; }
  .stack tr { border-bottom: 1px solid var(--ink); padding: .5rem 0; }
  .stack td, .stack td.number { display: inline-block; border: 0; padding: .1rem 0; margin-right: .9rem; text-align: left;
    white-space: normal; }
  .stack td[data-label]::before { content: attr(data-label) ": "; color: var(--soft); }
  dl { grid-template-columns: 8rem minmax(0, 1fr); }
}
@media print {
  @page { size: A4; margin: 16mm 15mm; }
  :root { color-scheme: light; --ink: #000; --paper: #fff; --soft: #444; --line: #bbb; --tint: #f4f4f4;
    --good: #000; --bad: #000; --note: #000; --link: #000; }
  html { font-size: 9pt; } body { font-size: 1rem; line-height: 1.4; max-width: none; padding: 0; }
  table { font-size: 7.5pt; } .scroll { overflow: visible; } .scroll td { white-space: normal; }
  a { text-decoration: none; } td.line { min-width: 0; width: 38%; }
  pre { white-space: pre-wrap; overflow: visible; } h2 { break-before: page; }
  #reproduce { break-before: auto; } h2, h3, h4, summary { break-after: avoid; }
  tr, .step, figure, .statement { break-inside: avoid; } thead { display: table-header-group; }
  details::details-content { content-visibility: visible; display: block; block-size: auto; }
  summary { list-style: none; } summary::-webkit-details-marker { display: none; }
  .formula { overflow: visible; }
  figure img { max-width: 8.2cm; } figure.wide img { min-width: 0; max-width: 100%; }
}
"""
