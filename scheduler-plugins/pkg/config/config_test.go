package config

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
)

func TestDecode(t *testing.T) {
	tests := map[string]struct {
		raw  string
		want func(Gang) bool
		err  []string
	}{
		"nothing given is the defaults":       {`{}`, func(g Gang) bool { return g == Default() }, nil},
		"what is given overrides one default": {`{"backfill":"easy"}`, func(g Gang) bool { return g.Backfill == "easy" && g.MaxBypasses == Default().MaxBypasses }, nil},
		"a misspelt name is an error":         {`{"backfil":"easy"}`, nil, []string{"backfil"}},
		"all values out of range at once":     {`{"backfill":"fast","permitSeconds":0,"maxBypasses":-2}`, nil, []string{`backfill is "fast"`, "permitSeconds is 0", "maxBypasses is -2"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			args, err := Decode(&runtime.Unknown{Raw: []byte(test.raw)})
			if (err != nil) != (test.err != nil) || (test.want != nil && !test.want(args)) {
				t.Fatalf("got %+v, %v", args, err)
			}
			for _, part := range test.err {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q is not reported: %v", part, err)
				}
			}
		})
	}
	if _, err := Decode(nil); err != nil {
		t.Errorf("the defaults are out of range: %v", err)
	}
}
