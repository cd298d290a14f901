"""Figures as files."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure


def save(picture: Axes | Figure, folder: str | Path, name: str) -> tuple[Path, Path]:
    """Save a figure as ``name.png`` and ``name.pdf``; equal figures give equal files.

    Parameters
    ----------
    picture : Axes or Figure
        What a plot returned, or its figure.
    folder : path
        Made if it is not there.
    name : str
        File name without its ending.

    Returns
    -------
    tuple of Path
        The PNG (200 dpi) and the PDF.

    Examples
    --------
    >>> import toolkit as tk
    >>> run = tk.simulate(tk.chain(tk.bsp(), tk.parameter_server()), tk.Simulator(2), until=tk.iterations(4))
    >>> [path.name for path in tk.plots.save(tk.plots.waiting(run), "figures", "waiting")]
    ['waiting.png', 'waiting.pdf']
    """
    figure = picture.get_figure(root=True) if isinstance(picture, Axes) else picture
    if figure is None:
        raise ValueError("The axes to be saved have no figure. They were removed from it. Draw them again.")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    png, pdf = folder / f"{name}.png", folder / f"{name}.pdf"
    figure.savefig(png, dpi=200, metadata={"Software": None})
    figure.savefig(pdf, metadata={"Creator": None, "Producer": None, "CreationDate": None})
    return png, pdf
