"""Plots of figures, as SVG and PNG."""
import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402


def plot(figure, path):
    picture, axes = pyplot.subplots(figsize=(7, 4.2))
    lines = figure["lines"]
    for index, line in enumerate(lines):
        x, y = zip(*line["points"])
        if "bars" in figure:
            width = 0.8 / len(lines)
            axes.bar([at + width * index for at in x], y, width, label=line["name"])
        else:
            axes.plot(x, y, marker="o", label=line["name"])
    if "bars" in figure:
        axes.set_xticks(range(len(figure["bars"])), figure["bars"],
                        fontsize=7 if len(figure["bars"]) > 4 else None)
    for name, at in figure.get("marks", []):
        axes.axvline(at, color="gray", linestyle="--")
        axes.annotate(name, (at, 0), rotation=90, ha="right")
    axes.set(title=figure["title"], xlabel=figure["x_label"], ylabel=figure["y_label"])
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    picture.tight_layout()
    for kind in ("svg", "png"):
        picture.savefig(f"{path}.{kind}", dpi=120)
    pyplot.close(picture)
