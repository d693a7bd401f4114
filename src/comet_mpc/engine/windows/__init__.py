"""Programs of many positions that are run a few positions at a time: a conversation.

A program of n positions is planned once, and its correlations are prepared as one. A *window* is some consecutive
positions. Run for a window, the program carries out the same operations in the same order, on the rows of these
positions only, and draws of each correlation the part that belongs to them (and of what belongs to pairs of positions,
the columns up to its end). What earlier windows have opened stays opened (`Session.keep`): the window uses the same
masks, and opens its own rows alone. So a position costs the same randomness whether it is run alone or along with
others, how many there are in a window is decided when it is run, and no part of a mask is drawn twice.

An axis belongs to positions if it has n elements in the whole program and fewer in a window.
"""

from comet_mpc.engine.windows.run import WindowPlan, WindowProgram, WindowSession
from comet_mpc.engine.windows.window import Window, with_past

__all__ = ["Window", "WindowPlan", "WindowProgram", "WindowSession", "with_past"]
