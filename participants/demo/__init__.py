"""`statecore demo`: a job of multi-turn rollouts on real servers is checkpointed, killed with SIGKILL, and comes back.

What each module is: `plan` what the job is, `players` what policy and judge say, `servers` the five servers, `lines`
their journals, `trainer` the framework's half, `life` one life of the job, `story` the lives one after the other,
`worlds` where servers run, `counting` the numbers at the end, `picture` and `view` what is shown, `command` the
command.
"""
