"""The page with all figures that were made so far."""
import html
import json

HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Zonal: figures of testbeds</title>
<style>body{font:16px/1.5 sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem}
img{max-width:100%}table{border-collapse:collapse}td,th{border:1px solid #bbb;padding:.2rem .6rem;
text-align:right}</style></head><body>
<h1>Figures of testbeds</h1>
<p>Published figures, repeated, and figures of Zonal's own goals. Each is of one run on
emulated racks. Rates of links and sizes stand below it.</p>
"""


def table(rows):
    head = "".join(f"<th>{html.escape(name)}</th>" for name in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{html.escape(str(value))}</td>" for value in row.values())
                   + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def write_page(folder):
    text = HEAD
    for path in sorted(folder.glob("*.json")):
        figure = json.loads(path.read_text())
        name = figure["name"]
        text += f"<h2>{html.escape(figure['title'])}</h2>\n"
        text += f"<p>{html.escape(figure['sentence'])}</p>\n"
        text += f'<img src="{name}.svg" alt="{html.escape(figure["title"])}">\n'
        if "table" in figure:
            text += table(figure["table"]) + "\n"
        if figure.get("predicted"):
            text += f'<p>Predicted by a model; <a href="{name}.json">data</a>.</p>\n'
            continue
        text += (f"<p>{figure['nodes']} nodes a rack, files of {figure['mib']} MiB, links of "
                 f"{figure['rate']}; <a href=\"{name}.json\">data</a>, "
                 f"<a href=\"{name}.png\">PNG</a>; {figure['seconds']} s.</p>\n")
    (folder / "index.html").write_text(text + "</body></html>\n")
