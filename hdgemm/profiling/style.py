"""The style of a report's page, light and dark."""

from typing import Final

STYLE: Final = """
:root { color-scheme: light dark; --ink: #1f2328; --quiet: #5b636d; --paper: #ffffff;
  --line: #d5d9de; --warn: #9a3412; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --quiet: #9aa4af; --paper: #16191d; --line: #343b43; --warn: #fdba74; }
}
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 70rem; margin: 0 auto; padding: 1.5rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; }
h2 { font-size: 1.15rem; margin-top: 2rem; }
.quiet, figcaption { color: var(--quiet); }
.warning { color: var(--warn); font-weight: 600; }
.verdict li:first-child { font-weight: 600; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 0.25rem 0.9rem 0.25rem 0; vertical-align: top;
  border-bottom: 1px solid var(--line); }
.pictures { display: flex; flex-wrap: wrap; gap: 1rem; }
figure { margin: 1rem 0; max-width: 100%; }
img { max-width: 100%; height: auto; }
img.paper { background: #ffffff; }
"""
