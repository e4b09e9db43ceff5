"""How a page looks: light and dark, on a phone, on a wide screen and on paper."""

LIGHT = """--paper: #fff; --ink: #1d2025; --soft: #5a616b; --shade: #878e98; --line: #dfe2e7; --panel: #f5f6f8;
  --accent: #1f5f9f; --best: #dfeaf7; --warn: #fbe9cf; --c0: #2b6cb0; --c1: #c8373f; --c2: #b8620b; --c3: #3f8a2f;
  --c4: #8452b5; --c5: #0c837d; --c6: #8a6a3c; --c7: #bd3689; --c8: #536474"""
DARK = """--paper: #15171b; --ink: #e6e8eb; --soft: #a5acb6; --shade: #868d97; --line: #30353c; --panel: #1d2025;
  --accent: #84b6ee; --best: #22385a; --warn: #4a3718; --c0: #6aa5e6; --c1: #f0797f; --c2: #e59b48; --c3: #86c65a;
  --c4: #b892e4; --c5: #45bdb5; --c6: #c7a574; --c7: #e880bf; --c8: #9fb0c1"""
STYLE = f"""
:root {{ color-scheme: light dark; {LIGHT} }}
@media (prefers-color-scheme: dark) {{ @media screen {{ :root {{ {DARK} }} }} }}
* {{ box-sizing: border-box }}
html {{ scroll-behavior: smooth; -webkit-text-size-adjust: 100% }}
@media (prefers-reduced-motion: reduce) {{ html {{ scroll-behavior: auto }} }}
body {{ margin: 0; font: 1rem/1.6 system-ui, "Segoe UI", Roboto, "Noto Sans", sans-serif; color: var(--ink);
  background: var(--paper) }}
a {{ color: var(--accent); text-underline-offset: .15em }}
:focus-visible {{ outline: 2px solid var(--accent); outline-offset: 2px; border-radius: 2px }}
.skip {{ position: absolute; left: -99rem }}
.skip:focus {{ left: 1rem; top: .5rem; background: var(--paper); padding: .3rem .6rem; z-index: 1 }}
.page {{ max-width: 68rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem }}
header {{ margin-bottom: 1.5rem }}
h1 {{ font-size: 1.9rem; line-height: 1.2; letter-spacing: -.015em; margin: 0 0 .4rem; text-wrap: balance }}
h2 {{ font-size: 1.3rem; line-height: 1.3; letter-spacing: -.01em; margin: 3.2rem 0 .4rem; scroll-margin-top: 1rem }}
h3 {{ font-size: 1rem; margin: 1.6rem 0 .3rem }}
p {{ max-width: 44rem; margin: .4rem 0 .9rem }}
.lead {{ font-size: 1.1rem; color: var(--soft) }}
.note, figcaption, caption, footer {{ color: var(--soft); font-size: .875rem }}
nav {{ margin-bottom: 1.5rem }}
nav ol {{ list-style: none; margin: 0; padding: 0; font-size: .875rem;
  display: flex; flex-wrap: wrap; gap: .15rem 1rem }}
nav a {{ color: var(--soft); text-decoration: none; display: inline-block; padding: .15rem 0 }}
nav a:hover {{ color: var(--accent); text-decoration: underline }}
.facts {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(14rem, 1fr)); gap: .9rem 1.5rem;
  margin: 1.2rem 0; border-block: 1px solid var(--line); padding: .9rem 0 }}
.facts div {{ min-width: 0 }} .facts dt {{ color: var(--soft); font-size: .8rem }}
.facts dd {{ margin: 0; font-weight: 600; overflow-wrap: anywhere }}
.wide {{ overflow-x: auto; margin: 1rem 0 }}
table {{ border-collapse: collapse; min-width: min(100%, 30rem); font-size: .9rem;
  font-variant-numeric: tabular-nums lining-nums }}
caption {{ text-align: left; padding-bottom: .5rem; max-width: min(44rem, 100vw - 2.5rem) }}
th, td {{ padding: .3rem .75rem; text-align: right; white-space: nowrap; vertical-align: baseline }}
th {{ font-weight: 600 }} thead th {{ border-bottom: 1.5px solid var(--shade); vertical-align: bottom }}
tbody tr {{ border-bottom: 1px solid var(--line) }}
th:first-child, td:first-child, td.text, th.text {{ text-align: left }}
tbody th:first-child {{ white-space: normal; overflow-wrap: anywhere; min-width: 6.5rem }}
.grouped tbody tr {{ border: 0 }} .grouped tbody {{ border-bottom: 1px solid var(--line) }}
.grouped tbody th.text, .grouped tbody tr:not(:first-child) td {{ color: var(--soft); font-weight: 400 }}
.grouped tbody tr:not(:first-child) td.best {{ color: var(--ink) }}
td.best {{ background: var(--best); font-weight: 650; border-radius: 3px }} td.warn {{ background: var(--warn) }}
td small {{ color: var(--soft); font-weight: 400; font-size: .8em }}
figure {{ margin: 1.1rem 0 1.6rem }} figcaption {{ max-width: 44rem; margin-top: .35rem }}
figure svg {{ max-width: 100%; height: auto; display: block; overflow: visible }}
.panels {{ display: flex; flex-wrap: wrap; gap: 1rem 1.1rem }}
.panels > * {{ flex: 0 1 auto; min-width: 0 }}
.legend {{ display: flex; flex-wrap: wrap; gap: .15rem 1.1rem; padding: 0; margin: .5rem 0 0; list-style: none;
  font-size: .875rem }}
.legend svg {{ display: inline-block; vertical-align: -.05em; margin-right: .4em }}
details {{ margin: .6rem 0; border-top: 1px solid var(--line) }} details + details {{ margin-top: -.6rem }}
summary {{ cursor: pointer; padding: .55rem 0; font-weight: 600 }} summary:hover {{ color: var(--accent) }}
.mosaic {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 19rem), 1fr)); gap: 1.6rem 2rem }}
.mosaic table {{ width: 100%; min-width: 0; table-layout: fixed }} .mosaic tbody tr {{ border: 0 }}
.mosaic td, .mosaic th {{ padding: .25rem .5rem .25rem 0; white-space: normal; text-align: left }}
.mosaic tbody th {{ font-weight: 400; color: var(--soft); padding-top: .5rem }}
img {{ display: block; max-width: 100%; image-rendering: pixelated }} .mosaic img {{ width: 100% }}
pre, code {{ font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace; font-size: .85em }}
pre {{ overflow-x: auto; background: var(--panel); border-radius: 6px; padding: .75rem .9rem; line-height: 1.45 }}
.tree {{ display: grid; grid-template-columns: minmax(6rem, max-content) minmax(0, 1fr); gap: .15rem 1.2rem;
  margin: .3rem 0; font-size: .9rem }}
.tree dt {{ color: var(--soft) }} .tree dd {{ margin: 0; overflow-wrap: anywhere }} .tree .tree {{ margin: 0 }}
.tree pre {{ margin: 0; white-space: pre-wrap }}
footer {{ margin-top: 3rem; border-top: 1px solid var(--line); padding-top: .8rem }}
@media (min-width: 76rem) {{
  .page.with-nav {{ max-width: 84rem; display: grid; grid-template-columns: 12rem minmax(0, 1fr); column-gap: 3.5rem }}
  .with-nav nav {{ position: sticky; top: 2.5rem; align-self: start; max-height: calc(100vh - 4rem); overflow-y: auto }}
  .with-nav nav ol {{ display: block }} .with-nav nav a {{ padding: .2rem 0 }}
}}
@media (max-width: 40rem) {{
  .page {{ padding-top: 1.5rem }} h1 {{ font-size: 1.55rem }} th, td {{ padding: .3rem .5rem }}
  .tree {{ grid-template-columns: minmax(0, 1fr) }} .tree dd {{ padding-left: .8rem }}
  .facts {{ grid-template-columns: repeat(auto-fill, minmax(9rem, 1fr)) }}
  .panels > * {{ width: 100% }} .panels svg {{ width: 100% }}
}}
@media print {{
  html {{ font-size: 9.5pt }} .page {{ max-width: none; padding: 0 }} nav, .skip {{ display: none }}
  .wide {{ overflow: visible }} table {{ font-size: .78em }} th, td {{ padding: .15rem .35rem }}
  h2, h3, summary {{ break-after: avoid }}
  figure svg, tbody.pair, .mosaic > *, .facts {{ break-inside: avoid }} thead {{ display: table-header-group }}
  pre {{ white-space: pre-wrap }} td.best {{ outline: 1px solid var(--shade) }}
  details::details-content {{ content-visibility: visible; display: block; height: auto }}
}}
"""
