"""The problem and the answer: an instance, a schedule, a lower bound, and the files that hold them."""
