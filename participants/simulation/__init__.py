"""`statecore simulate`: a whole job in one process, in virtual time, with every fault that a seed draws.

What each module is: `network` messages that are late, lost, doubled or cut off, `game` a resources server without a
library behind it, `fleet` the servers of one start, `plan` what a seed makes of it, `truth` what was really done,
`life` one coordinator, `operator` who brings coordinators and servers back and deals blows, `verdict` what must hold,
`job` all of it as a world, `story` a history for people, `command` the command. docs/how-to/simulate.md
"""
