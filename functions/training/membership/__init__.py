"""Which workers train together: a protocol of one coordinator (the scheduler's member) and the workers. Pure.

Theory of operation
-------------------
Workers train in *views*: a view is an ordered list of members that exchange gradients. A new view comes about in one of
two ways.

- *Planned*, when workers join or leave. The coordinator orders the next view; its members form it in the background
  while the old one trains. A member that is ready offers it in each exchange, as two more elements of the sum. When
  the sums show that all offer the same view, all go over after this very step, because all see the same sums. The
  newcomers then get the state from a member that has it.
- *Forced*, when a member died, hangs or lost a connection. Every survivor closes its connections at once (its peers
  wait for it otherwise) and the coordinator orders a view of the survivors, under a new prefix. In it they compare
  their clocks, the number of exchanges that each has completed. They differ by one at most, because an exchange needs
  all members: a survivor that is behind gets the kept result of that exchange from one that has it, and no member
  applies an exchange twice. Where all clocks are equal the exchange is repeated, split over the survivors.

A member that a view leaves out never comes back with its own state: it joins again as a newcomer, whose state is
replaced (`View.newcomers`). So there is one line of states, whatever happened to whom. The first view is *founded*: its
first member's state becomes that of all. Between epochs there is no step to agree after: changes are made at once.

The coordinator is needed for changes only. When it is lost the members train on, connect to the next one and say where
they are; it goes on with the newest view that it hears of.

Events go in by methods; commands come out as a list. Nothing here does I/O, reads a clock or starts a thread, so that
tests run millions of histories of these very classes.
"""
