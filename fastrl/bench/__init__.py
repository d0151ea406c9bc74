"""The programs behind `fastrl-bench`: what the engine claims, as commands anyone can run."""
