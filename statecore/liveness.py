"""What must happen in the end: `eventually` and `leads_to`, on every behaviour that is weakly fair.

A behaviour goes on for ever; where nothing happens any more it stays in one state. Nothing is bound to happen unless it
is fair: an action that is fair and stays enabled from some moment on is taken again and again (each value of an action
`over` values by itself; a step that changes nothing is as good as none, and not owed). `eventually(P)` is broken by a
fair behaviour without P, `leads_to(P, Q)` by one that has P and from then on never Q.

Such a behaviour exists if and only if one does that runs into a strongly connected component of the states without P
(without Q) and stays there, so that each fair action is disabled somewhere in the component or taken inside it. For
weak fairness the largest components are enough: what is disabled somewhere, or taken, is so in all that contains it.
The counterexample is a lasso: a way to the component, and a round in it past one witness for each fair action.

Symmetry is not used here: fairness is owed to each of the members that change places, and which one it was would be
lost on the way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator

from attrs import Factory, define

from .errors import DefinitionError
from .findings import CTRL_C, Exploration, Limits, Violation, noted
from .properties import Kind, Property
from .seams import Clock
from .world import Action, State, Step, World

__all__ = ["Graph", "components", "explored", "fair_actions", "never", "settle"]

MOST_STATES = 2_000_000
"""So many states are kept as a graph; a larger world is *not finished* as far as liveness goes."""
BYTES_A_STATE = 1_000
"""What a state with about ten steps out of it takes in a graph."""

Edge = tuple[int, int]  # the number of a step, the number of the state that it leads to
Move = tuple[int, int, int]  # the state before, the step, the state after


@define
class Graph:
    """Every reachable state with the steps out of it that change it; numbered breadth first, 0 is the initial one."""

    steps: list[Step]
    states: list[State] = Factory(list)
    edges: list[list[Edge]] = Factory(list)


def settle(world: World, found: Exploration, limits: Limits, clock: Clock | None, spent: float = 0.0) -> None:
    """`found` says what became of its unchecked properties: they are checked, or one is broken, or a limit is named.

    Only an exploration that came to its end without a violation is gone on with; it has taken `spent` seconds of the
    limit. `world` is only asked for its parameters.
    """
    declared = [p for p in world.properties_.values() if p.name in found.unchecked]
    if not declared or found.violation is not None or found.limit is not None:
        return
    fair = {p.name: fair_actions(world, p) for p in declared}
    stop_at = None if clock is None or limits.seconds is None else clock.monotonic() + limits.seconds - spent
    most = MOST_STATES if limits.memory is None else min(MOST_STATES, limits.memory // BYTES_A_STATE)
    most = min(limits.states, most)

    def stop(states: int) -> bool:
        if states > most:
            found.limit = f"{most} states while liveness was checked"
        elif stop_at is not None and clock is not None and clock.monotonic() >= stop_at:
            found.limit = f"{limits.seconds} seconds while liveness was checked"
        return found.limit is not None

    world = type(world)(**world.params)  # one that stands where it begins
    try:
        graph = explored(world, stop)
        if graph is None:
            return
        if found.symmetry:
            told = f"eventually and leads_to were checked without symmetry, in {len(graph.states):,} states"
            found.notes = (*found.notes, told)
        for each in declared:
            broken = never(world, graph, each, fair[each.name])
            found.unchecked = tuple(name for name in found.unchecked if name != each.name)
            found.checked = (*found.checked, each.name)
            if broken is not None:
                found.violation = broken
                return
    except KeyboardInterrupt:
        found.limit = CTRL_C


def fair_actions(world: World, declared: Property) -> frozenset[str]:
    """The names of the actions that are weakly fair for a property: those that it names, else those declared fair."""
    if declared.fair is None:
        return frozenset(name for name, each in world.actions_.items() if each.fair)
    for name in declared.fair:
        if name not in world.actions_:
            known = ", ".join(world.actions_)
            raise DefinitionError(f"{declared.name}: fair={name!r} is no action of {type(world).__name__} ({known})")
    return frozenset(declared.fair)


def explored(world: World, stop: Callable[[int], bool] = lambda states: False) -> Graph | None:
    """The graph of a world that stands where it begins, or None if `stop(states so far)` said so on the way.

    No step of it may break a property by itself (`fail`): an exploration has come to its end before.
    """
    acts = list(world.steps())
    start = world.values
    graph = Graph([step for step, _ in acts], [start], [])
    number = {start: 0}
    for state in graph.states:  # grows while it is walked through
        if stop(len(graph.states)):
            return None
        out: list[Edge] = []
        for index, (step, act) in enumerate(acts):
            world.put(state)
            if _act(world, step, act, state):
                after = world.values
                if after not in number:
                    number[after] = len(graph.states)
                    graph.states.append(after)
                if after != state:
                    out.append((index, number[after]))
        graph.edges.append(out)
    world.put(start)
    return graph


def _act(world: World, step: Step, act: Action, state: State) -> bool:
    """Whether the step is enabled in the state, in which the world stands."""
    try:
        return world.act(act, step.args)
    except Exception as error:  # under symmetry, this is the first time that the search comes to this state
        noted(error, f"action {step.label}", world, state)
        raise


def never(world: World, graph: Graph, declared: Property, fair: Collection[str]) -> Violation | None:
    """A fair behaviour that breaks the property, as short a lasso as is easily found; None if there is none."""
    name, at_first = declared.name, declared.kind is Kind.EVENTUALLY
    bad = _where(world, graph, name, declared.to or declared.holds, wanted=False)
    triggers = {0} if at_first else _where(world, graph, name, declared.holds, wanted=True)
    ways = _ways(graph, triggers & bad, bad, only_at_first=at_first)
    inside = {state: order for order, (state, begun) in enumerate(ways) if begun}
    fair_steps = frozenset(index for index, step in enumerate(graph.steps) if step.name in fair)
    best: tuple[list[Move], list[Move]] | None = None
    for members in components(inside, lambda state: [after for _, after in graph.edges[state] if after in inside]):
        if not _is_fair(graph, members, fair_steps):
            continue
        nearest = min(members, key=inside.__getitem__)
        quiet = [each for each in members if fair_steps.isdisjoint(_enabled(graph, each))]  # nothing need happen there
        for entry in (min(quiet, key=inside.__getitem__), nearest) if quiet else (nearest,):
            lasso = _stem(ways, entry), _round(graph, members, entry, fair_steps)
            if best is None or sum(map(len, lasso)) < sum(map(len, best)):
                best = lasso
    if best is None:
        return None
    stem, turn = best
    moves = [*stem, *turn]
    states = (graph.states[0], *(graph.states[after] for _, _, after in moves))
    steps = tuple(graph.steps[step] for _, step, _ in moves)
    return Violation(name, declared.covers, steps, states, len(stem))


def components(nodes: Iterable[int], after: Callable[[int], Iterable[int]]) -> Iterator[set[int]]:
    """The strongly connected components of a graph, each state in exactly one (Tarjan 1972, without recursion)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    waiting: set[int] = set()
    for root in nodes:
        if root in index:
            continue
        calls: list[tuple[int, Iterator[int]]] = [(root, iter(after(root)))]
        index[root] = low[root] = len(index)
        stack.append(root)
        waiting.add(root)
        while calls:
            node, rest = calls[-1]
            for other in rest:
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    waiting.add(other)
                    calls.append((other, iter(after(other))))
                    break
                if other in waiting:
                    low[node] = min(low[node], index[other])
            else:
                calls.pop()
                if calls:
                    low[calls[-1][0]] = min(low[calls[-1][0]], low[node])
                if low[node] == index[node]:
                    members = set()
                    while node not in members:
                        members.add(stack.pop())
                    waiting -= members
                    yield members


def _where(world: World, graph: Graph, name: str, predicate: Callable[[World], object], *, wanted: bool) -> set[int]:
    """The states in which the predicate is as wanted."""
    found = set()
    for number, state in enumerate(graph.states):
        world.put(state)
        try:
            if world.holds(predicate) is wanted:
                found.add(number)
        except Exception as error:
            noted(error, f"property {name!r}", world, state)
            raise
    world.put(graph.states[0])
    return found


Place = tuple[int, bool]  # a state, and whether what the property waits for has begun
Ways = dict[Place, tuple[Place, int] | None]


def _ways(graph: Graph, begins: Collection[int], bad: Collection[int], *, only_at_first: bool) -> Ways:
    """Breadth first, how each place is reached: anywhere until it begins, then through bad states only."""
    ways: Ways = {}
    queue: deque[Place] = deque()

    def arrive(state: int, begun: bool, way: tuple[Place, int] | None) -> None:
        if (state, begun) not in ways:
            ways[state, begun] = way
            queue.append((state, begun))

    if 0 in begins:
        arrive(0, True, None)
    if not only_at_first:
        arrive(0, False, None)
    while queue:
        place = queue.popleft()
        for step, after in graph.edges[place[0]]:
            if (place[1] and after in bad) or after in begins:
                arrive(after, True, (place, step))
            if not place[1]:
                arrive(after, False, (place, step))
    return ways


def _stem(ways: Ways, entry: int) -> list[Move]:
    """The steps from the initial state to `entry`."""
    moves: list[Move] = []
    place: Place = (entry, True)
    while (way := ways[place]) is not None:
        moves.append((way[0][0], way[1], place[0]))
        place = way[0]
    return moves[::-1]


def _enabled(graph: Graph, state: int) -> set[int]:
    return {step for step, _ in graph.edges[state]}


def _is_fair(graph: Graph, members: set[int], fair: frozenset[int]) -> bool:
    """Whether one can stay among the members for ever with each fair step disabled somewhere or taken inside."""
    owed = set(fair)
    for state in members:
        owed &= _enabled(graph, state)  # what is disabled here is owed no more
    return not owed or owed <= {step for state in members for step, after in graph.edges[state] if after in members}


def _round(graph: Graph, members: set[int], entry: int, fair: frozenset[int]) -> list[Move]:
    """Steps from `entry` back to it among the members, past a witness for each fair step; none if none is owed one."""
    owed = fair & _enabled(graph, entry)

    def pays(move: Move) -> bool:
        return move[1] in owed or not owed <= _enabled(graph, move[2])

    taken: list[Move] = []
    here = entry
    while owed:
        taken += _walk(graph, members, here, pays)
        here = taken[-1][2]
        for _, step, after in taken:
            owed = (owed - {step}) & _enabled(graph, after)
    if here != entry:
        taken += _walk(graph, members, here, lambda move: move[2] == entry)
    return taken


def _walk(graph: Graph, members: set[int], here: int, arrived: Callable[[Move], bool]) -> list[Move]:
    """The shortest way among the members that ends with a move as asked for."""
    ways: dict[int, Move | None] = {here: None}
    queue = deque([here])
    while queue:
        state = queue.popleft()
        for step, after in graph.edges[state]:
            if after not in members:
                continue
            move = (state, step, after)
            if arrived(move):
                back = [move]
                while (before := ways[back[-1][0]]) is not None:
                    back.append(before)
                return back[::-1]
            if after not in ways:
                ways[after] = move
                queue.append(after)
    raise AssertionError("a strongly connected component has a way to each of its states")
