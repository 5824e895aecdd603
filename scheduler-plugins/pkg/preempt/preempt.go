// Package preempt chooses which running gangs give way to one that waits: FitGpp (Yabuuchi et al., OpML 2019), and LRTP and
// RAND, with which the paper compares it. It is pure: a choice is tried on a snapshot, never on the cluster.
package preempt

import (
	"cmp"
	"math"
	"math/rand"
	"slices"

	"coach.dev/scheduler-plugins/pkg/identity"
	"coach.dev/scheduler-plugins/pkg/planner"
	"coach.dev/scheduler-plugins/pkg/reason"
)

// Policy is the knob: which gangs go first.
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
	GraceWeight    float64 // s of the paper: the importance of the grace period beside the size; 4 there
	MaxPreemptions int     // P of the paper: how often a gang may be preempted in its life; 1 there
	Seed           int64   // of RAND
}

// Victim is a running gang that may be preempted.
type Victim struct {
	Gang       identity.Key
	Demand     []int64 // all that its members request
	Grace      float64 // seconds that it needs to stop (GP of the paper)
	Preempted  int     // how often it was preempted so far (PC of the paper)
	Remaining  float64 // seconds until it ends by itself; infinite where nobody can say
	AtBoundary bool    // it is between two epochs: nothing is lost by stopping it now
}

// Choose gives the gangs to preempt so that gang's missing members fit, in the order of the choice, or none if no set of the
// victims allowed makes room. The set is minimal: without any one of them the gang would not fit.
//
// Victims at an epoch boundary go before all others. Then FitGpp takes the gang with the least score
//
//	|D_j| / max |D| + s * GP_j / max GP      (equation 1)
//
// among those that make room by themselves and were preempted fewer than P times (equation 2). The paper's jobs are single
// tasks and it stops there; a gang can need more room than any one victim holds, and then the least scores are added up until
// it fits, as LRTP and RAND do with their orders.
func Choose(s *planner.Snapshot, gang *planner.Gang, missing []reason.Count, victims []Victim, settings Settings) []identity.Key {
	allowed := slices.DeleteFunc(slices.Clone(victims), func(v Victim) bool {
		return v.Preempted >= settings.MaxPreemptions || v.Gang == gang.Key
	})
	if settings.Policy == Never || !fitsWithout(s, gang, missing, allowed) {
		return nil
	}
	allowed = ranked(s, allowed, settings)
	if settings.Policy == FitGpp {
		for i := range allowed {
			if fitsWithout(s, gang, missing, allowed[i:i+1]) {
				return []identity.Key{allowed[i].Gang}
			}
		}
	}
	chosen := 1
	for chosen < len(allowed) && !fitsWithout(s, gang, missing, allowed[:chosen]) {
		chosen++
	}
	return keys(trim(s, gang, missing, allowed[:chosen]))
}

// ranked orders victims by the policy, those at a boundary first.
func ranked(s *planner.Snapshot, victims []Victim, settings Settings) []Victim {
	victims = slices.Clone(victims)
	slices.SortFunc(victims, func(a, b Victim) int { return byName(a.Gang, b.Gang) })
	random := rand.New(rand.NewSource(settings.Seed))
	random.Shuffle(len(victims), func(i, j int) {
		if settings.Policy == Random {
			victims[i], victims[j] = victims[j], victims[i]
		}
	})
	scores := Scores(s, victims, settings.GraceWeight)
	slices.SortStableFunc(victims, func(a, b Victim) int {
		if a.AtBoundary != b.AtBoundary {
			if a.AtBoundary {
				return -1
			}
			return 1
		}
		switch settings.Policy {
		case FitGpp:
			return cmp.Compare(scores[a.Gang], scores[b.Gang])
		case LRTP:
			return cmp.Compare(b.Remaining, a.Remaining)
		}
		return 0
	})
	return victims
}

// Scores gives equation 1 for each victim. |D| is the Euclidean norm of the demand, each amount relative to the largest node.
func Scores(s *planner.Snapshot, victims []Victim, graceWeight float64) map[identity.Key]float64 {
	largest, longest := 0.0, 0.0
	norms := make([]float64, len(victims))
	for i, victim := range victims {
		norms[i] = s.Norm(victim.Demand)
		largest, longest = max(largest, norms[i]), max(longest, victim.Grace)
	}
	scores := make(map[identity.Key]float64, len(victims))
	for i, victim := range victims {
		scores[victim.Gang] = ratio(norms[i], largest) + graceWeight*ratio(victim.Grace, longest)
	}
	return scores
}

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// trim drops victims that turned out unnecessary, the last chosen first.
func trim(s *planner.Snapshot, gang *planner.Gang, missing []reason.Count, victims []Victim) []Victim {
	kept := slices.Clone(victims)
	for i := len(kept) - 1; i >= 0; i-- {
		without := slices.Delete(slices.Clone(kept), i, i+1)
		if fitsWithout(s, gang, missing, without) {
			kept = without
		}
	}
	return kept
}

func fitsWithout(s *planner.Snapshot, gang *planner.Gang, missing []reason.Count, victims []Victim) bool {
	freed := s.Copy()
	for _, victim := range victims {
		freed.GiveBack(victim.Gang)
	}
	return planner.FitsMissing(freed, gang, missing)
}

func keys(victims []Victim) []identity.Key {
	keys := make([]identity.Key, len(victims))
	for i, victim := range victims {
		keys[i] = victim.Gang
	}
	return keys
}

func byName(a, b identity.Key) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Job, b.Job))
}

// Forever is the remaining time of a gang of which nobody can say when it ends.
var Forever = math.Inf(1)
