package planner

// BestScore is the best score that a node can have.
const BestScore = 100

// ThesisScore is algorithm 3 of the thesis: 100 unless a pod of another job is on the node. An empty node and one that
// holds the job score alike, so nothing draws a job together.
func ThesisScore(preference NodePreference) int64 {
	if preference == Own || preference == Empty {
		return BestScore
	}
	return 0
}

// Score distinguishes all four preferences, a third of the range for each step.
func Score(preference NodePreference) int64 {
	return []int64{Own: BestScore, Empty: 66, OwnShared: 33, OtherJobs: 0}[preference]
}
