"""What is timed, side by side with what it competes with. Nothing here is asserted in a test: a clock is no proof."""
