/* Two-phase commit of N resource managers: the states and steps of models/two_phase_commit.py, for Spin.
 *
 *   spin -DN=8 -a two_phase.pml        -DPLANTED: a manager may also abort after it has prepared
 *
 * One process that always stands at the head of its loop, and every step is a d_step: no state is of Spin's own. Sets are
 * the bits of a number, and so are the managers, two bits each. A decision and the message that tells of it are one
 * variable, since they are always the same. */

#define WORKING 0
#define PREPARED 1
#define COMMITTED 2
#define ABORTED 3
#define UNDECIDED 0

#define ALL ((1 << N) - 1)
#define FIRST_BITS 21845 /* of each pair: COMMITTED has the second bit alone, ABORTED has both */
#define AT(i) ((managers >> (2 * i)) & 3)
#define PUT(i, state) managers = (managers & ~(3 << (2 * i))) | (state << (2 * i))
#define CONSISTENT \
    assert(((managers >> 1) & ~managers & FIRST_BITS) == 0 || ((managers >> 1) & managers & FIRST_BITS) == 0)

#ifdef PLANTED
#define MAY_ABORT(i) (AT(i) <= PREPARED)
#else
#define MAY_ABORT(i) (AT(i) == WORKING)
#endif

#define STEPS(i) \
    :: d_step { decided == UNDECIDED && (sent & (1 << i)) -> heard = heard | (1 << i) } \
    :: d_step { AT(i) == WORKING -> PUT(i, PREPARED); sent = sent | (1 << i) } \
    :: d_step { MAY_ABORT(i) -> PUT(i, ABORTED); CONSISTENT } \
    :: d_step { decided == COMMITTED && (AT(i) == PREPARED || AT(i) == COMMITTED) -> PUT(i, COMMITTED); CONSISTENT } \
    :: d_step { decided == ABORTED && AT(i) != COMMITTED -> PUT(i, ABORTED); CONSISTENT }

int managers = 0;
short sent = 0;  /* "I am prepared", from that manager */
short heard = 0; /* the same, as far as the transaction manager has received it */
byte decided = UNDECIDED;

active proctype everybody() {
end:
    do
    :: d_step { decided == UNDECIDED && heard == ALL -> decided = COMMITTED }
    :: d_step { decided == UNDECIDED -> decided = ABORTED }
    STEPS(0)
    STEPS(1)
    STEPS(2)
#if N > 3
    STEPS(3)
#endif
#if N > 4
    STEPS(4)
#endif
#if N > 5
    STEPS(5)
#endif
#if N > 6
    STEPS(6)
#endif
#if N > 7
    STEPS(7)
#endif
    od
}
