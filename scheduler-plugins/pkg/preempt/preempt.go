// Package preempt chooses which running gangs is preempted to one that waits: FitGpp (Yabuuchi et al., OpML 2019), and LRTP and
// RAND, with which the paper compares it. It is pure: a choice is tried on a snapshot, never on the cluster.
package preempt

import (
	"cmp"
	"math"
	"slices"

	"coach.dev/scheduler-plugins/pkg/identity"
	"coach.dev/scheduler-plugins/pkg/planner"
	"coach.dev/scheduler-plugins/pkg/reason"
)

// Policy is which gangs are preempted first.
type Policy string

const (
	Never  Policy = "never"
	FitGpp Policy = "fitgpp" // small, with a short grace period, and large enough to be the only victim
	LRTP   Policy = "lrtp"   // longest remaining time first (Big-C)
	Random Policy = "random"
)

// Policies in the order of docs and errors.
var Policies = [...]Policy{Never, FitGpp, LRTP, Random}

// Settings of a policy.
type Settings struct {
	Policy         Policy
	GraceWeight    float64 // s of the paper: the importance of the grace period relative to the size; 4 there
	MaxPreemptions int     // P of the paper: how often a gang may be preempted at all; 1 there
}

// Preemptor is a gang that waits for capacity.
type Preemptor struct {
	Gang          *planner.Gang
	Missing       []reason.Count // its required members without a node
	TrialAndError bool           // trial-and-error: it may preempt the others, which are best-effort
}

// Running is a gang that holds capacity.
type Running struct {
	Gang          identity.Key
	Priority      int32
	TrialAndError bool
	Requests      []int64 // all that its members request
	GracePeriod   float64 // seconds that it needs to stop (GP of the paper)
	Preempted     int     // how often it was preempted so far (PC of the paper)
	Remaining     float64 // seconds until it ends by itself; Forever if unknown
	BetweenEpochs bool    // it is between two epochs: nothing is lost by stopping it now
	Draw          float64 // random number, lowest first; only RAND uses it
}

// Choose gives the gangs to preempt so that the missing members fit, in the order of the choice, or none if no set of those
// that may be preempted frees enough capacity, or none is needed. The set is minimal: without any one of them the gang would not fit.
//
// Victims at an epoch boundary go before all others. Then FitGpp takes the gang with the least score among those that free enough capacity
// by themselves and were preempted fewer than P times (equation 2). The paper's jobs are single tasks and it stops there; a gang
// can need more capacity than any one victim holds, and then the least scores are added up until it fits, as LRTP and RAND do with
// their orders. tests/conformance/README.md has the rules in full, under "Which jobs are preempted".
func Choose(s *planner.Snapshot, preemptor Preemptor, running []Running, settings Settings) []identity.Key {
	if settings.Policy == Never || !preemptor.TrialAndError || fitsWithout(s, preemptor, nil) {
		return nil
	}
	scores := Scores(s, running, settings.GraceWeight)
	allowed := slices.DeleteFunc(slices.Clone(running), func(r Running) bool {
		return r.TrialAndError || r.Preempted >= settings.MaxPreemptions || r.Priority > preemptor.Gang.Order.Priority || r.Gang == preemptor.Gang.Key
	})
	if !fitsWithout(s, preemptor, allowed) {
		return nil
	}
	slices.SortFunc(allowed, func(a, b Running) int { return inOrder(&a, &b, settings.Policy, scores) })
	if settings.Policy == FitGpp {
		for i := range allowed {
			if fitsWithout(s, preemptor, allowed[i:i+1]) {
				return []identity.Key{allowed[i].Gang}
			}
		}
	}
	chosen := 1
	for chosen < len(allowed) && !fitsWithout(s, preemptor, allowed[:chosen]) {
		chosen++
	}
	return keys(minimize(s, preemptor, allowed[:chosen]))
}

// inOrder compares by the policy, those at a boundary first, and at last by name: a total order.
func inOrder(a, b *Running, policy Policy, scores map[identity.Key]float64) int {
	if a.BetweenEpochs != b.BetweenEpochs {
		if a.BetweenEpochs {
			return -1
		}
		return 1
	}
	chosen := 0
	switch policy {
	case FitGpp:
		chosen = cmp.Compare(scores[a.Gang], scores[b.Gang])
	case LRTP:
		chosen = cmp.Compare(b.Remaining, a.Remaining)
	case Random:
		chosen = cmp.Compare(a.Draw, b.Draw)
	}
	return cmp.Or(chosen, a.Gang.Compare(b.Gang))
}

// Scores gives equation 1 for each running best-effort gang,
//
//	|D_j| / max |D| + s * GP_j / max GP
//
// with both maxima over all of them, those that may not be preempted any more included. |D| is the Euclidean norm of the demand,
// each amount relative to the largest node. Scores are rounded to billionths, so that equal ones tie however they came about.
func Scores(s *planner.Snapshot, running []Running, graceWeight float64) map[identity.Key]float64 {
	largest, longest := 0.0, 0.0
	norms := make([]float64, len(running))
	for i, r := range running {
		if !r.TrialAndError {
			norms[i] = s.Norm(r.Requests)
			largest, longest = max(largest, norms[i]), max(longest, r.GracePeriod)
		}
	}
	scores := make(map[identity.Key]float64, len(running))
	for i, r := range running {
		if !r.TrialAndError {
			scores[r.Gang] = math.Round((ratio(norms[i], largest)+graceWeight*ratio(r.GracePeriod, longest))*1e9) / 1e9
		}
	}
	return scores
}

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// minimize drops victims that turned out unnecessary, the last chosen first.
func minimize(s *planner.Snapshot, preemptor Preemptor, victims []Running) []Running {
	kept := slices.Clone(victims)
	for i := len(kept) - 1; i >= 0; i-- {
		without := slices.Delete(slices.Clone(kept), i, i+1)
		if fitsWithout(s, preemptor, without) {
			kept = without
		}
	}
	return kept
}

func fitsWithout(s *planner.Snapshot, preemptor Preemptor, victims []Running) bool {
	freed := s.Copy()
	for _, victim := range victims {
		freed.Release(victim.Gang)
	}
	return planner.FitsMissing(freed, preemptor.Gang, preemptor.Missing)
}

func keys(victims []Running) []identity.Key {
	keys := make([]identity.Key, len(victims))
	for i, victim := range victims {
		keys[i] = victim.Gang
	}
	return keys
}

// Forever is the remaining time of a gang whose end is unknown.
var Forever = math.Inf(1)
