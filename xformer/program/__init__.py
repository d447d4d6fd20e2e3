"""A module's forward pass as a straight-line program: its operations, their axes and lines of source, and its attention."""
