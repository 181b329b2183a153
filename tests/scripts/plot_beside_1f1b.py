"""Draw the optimum below 1F1B on one time axis, for a paper, for a browser, and on axes of my own."""

import matplotlib.pyplot as plt

import zbopt

step = zbopt.instance(stages=4, microbatches=6, forward=2, backward=2, weight=1)
optimum = zbopt.solve(step, time_limit_s=10).require_schedule()
schedules = {"1F1B": zbopt.heuristics.one_f_one_b(step), "optimum": optimum}
zbopt.plot(schedules, "both.svg")
zbopt.report(schedules, "both.html")

figure, (above, below) = plt.subplots(2, 1, figsize=(8, 4), sharex=True)
drawn = zbopt.plot(schedules, ax=[above, below])
assert drawn is figure
above.set_title("mine")
figure.savefig("mine.png")
