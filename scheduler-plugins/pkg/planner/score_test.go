package planner

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestTheTableOfScoresInTheDocsHolds: docs/advanced/scheduler.md shows what the thesis's score does not distinguish.
func TestTheTableOfScoresInTheDocsHolds(t *testing.T) {
	text, err := os.ReadFile("../../../docs/advanced/scheduler.md")
	if err != nil {
		t.Fatal(err)
	}
	standings := map[string]NodePreference{"holds the job and no other": Own, "is empty": Empty, "holds the job and another": OwnShared, "holds other jobs only": OtherJobs}
	for words, preference := range standings {
		row := fmt.Sprintf("| %s | %d | %d |", words, ThesisScore(preference), Score(preference))
		if !strings.Contains(string(text), row+"\n") {
			t.Errorf("no row %q", row)
		}
	}
	if ThesisScore(Own) != ThesisScore(Empty) || Score(Own) <= Score(Empty) {
		t.Error("the thesis's score distinguishes an empty node from one that holds the job, or ours does not")
	}
}
