"""How the report looks. One style sheet, for light and dark screens and for paper."""

# Of the parts of a stacked column; as attributes too, for viewers that give SVG no styles.
COLORS = {
    "wait": "#f0b429",
    "turn": "#a65e9a",
    "train": "#2563eb",
    "publish": "#0f9b8e",
    "rest": "#b8c2cc",
    "right": "#2f9e58",
    "wrong": "#cbd2d9",
    "unparseable": "#f0b429",
    "timeout": "#9061d9",
    "exception": "#dc2626",
}

STYLE = """
:root { color-scheme: light dark; --ink: #1f2933; --faint: #66758a; --line: #e4e7eb; --paper: #fff; --back: #f5f7fa;
  --blue: #2563eb; --red: #dc2626; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7eb; --faint: #9aa5b1; --line: #323f4b; --paper: #1b2430;
  --back: #121922; }
  .rest, .wrong { background: #52606d !important; fill: #52606d; } img.curves { filter: brightness(.92); } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { display: inline; font-size: 28px; letter-spacing: -.01em; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 16px; margin: 0 0 12px; }
code, pre { font: 12.5px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
pre { white-space: pre-wrap; margin: 6px 0 0; }
a { color: var(--blue); }
small { color: var(--faint); }
.sub, .nothing { color: var(--faint); margin: 4px 0 18px; }
.nothing { margin: 0; }
.badge { margin-left: 12px; padding: 3px 12px; border-radius: 99px; font-size: 13px; font-weight: 600; vertical-align: 4px;
  background: var(--line); }
.badge.finished { background: #d3f3df; color: #14532d; }
.badge.failed { background: #fddcdc; color: #7f1d1d; }
.badge.stopped { background: #fdeecb; color: #78450b; }
.badge.running { background: #dbe8fe; color: #1e3a8a; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(136px, 1fr)); gap: 12px; }
.card, section { background: var(--paper); border: 1px solid var(--line); border-radius: 10px; }
.card { padding: 12px 14px; }
.card span, .card small { display: block; color: var(--faint); font-size: 12.5px; }
.card b { display: block; font-size: 22px; font-weight: 650; letter-spacing: -.01em; font-variant-numeric: tabular-nums; }
section { margin-top: 20px; padding: 20px; }
img.curves { width: 100%; height: auto; display: block; border-radius: 6px; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 4px 22px; margin: 0 0 12px; padding: 0; }
.legend i { display: inline-block; width: 11px; height: 11px; border-radius: 3px; margin-right: 7px; }
svg.columns { width: 100%; height: 160px; display: block; }
.axis { display: flex; justify-content: space-between; color: var(--faint); font-size: 12px; margin-top: 4px; }
.scroll { overflow: auto; max-height: 440px; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; font-variant-numeric: tabular-nums; }
th { position: sticky; top: 0; background: var(--paper); color: var(--faint); font-weight: 500; }
th, td { text-align: right; padding: 5px 12px; border-bottom: 1px solid var(--line); white-space: nowrap; }
table.text th, table.text td { text-align: left; }
table.text td { white-space: normal; }
tbody tr:hover { background: color-mix(in srgb, var(--blue) 6%, transparent); }
details summary { cursor: pointer; color: var(--faint); }
.failure { border-left: 3px solid var(--red); padding: 2px 0 2px 14px; margin-bottom: 12px; }
@media print { body { background: #fff; } .scroll { max-height: none; } section { break-inside: avoid; } }
"""
