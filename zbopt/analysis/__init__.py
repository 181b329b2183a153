"""Analysis of schedules: times, memory, why stages are idle, and how two schedules differ."""
