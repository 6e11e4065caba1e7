"""The lowest layer: clocks, tasks, timers, deadlines and logs. It knows nothing about queues."""
