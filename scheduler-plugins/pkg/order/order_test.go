package order

import (
	"math/rand"
	"slices"
	"testing"
)

func TestLess(t *testing.T) {
	tests := map[string]struct {
		first, second Key
	}{
		"a higher priority goes before an older job":         {Key{Priority: 5, Since: 9}, Key{Priority: 1, Since: 1}},
		"trial and error goes before an older best effort":   {Key{Since: 2}, Key{BestEffort: true, Since: 1}},
		"but not before a higher priority":                   {Key{Priority: 1, BestEffort: true}, Key{Since: 1}},
		"at one priority the older job goes first":           {Key{Since: 1, Name: "z"}, Key{Since: 2, Name: "a"}},
		"two jobs of one second do not mix their pods":       {Key{Since: 1, Gang: "a", Name: "z"}, Key{Since: 1, Gang: "b", Name: "a"}},
		"inside a gang pods go by name":                      {Key{Since: 1, Gang: "a", Name: "p-0"}, Key{Since: 1, Gang: "a", Name: "p-1"}},
		"under the thesis's rules a tie goes by the name":    {Key{Since: 1, Name: "b-worker-0"}, Key{Since: 1, Name: "c-scheduler-0"}},
		"a pod without a job goes first at the same instant": {Key{Since: 1}, Key{Since: 1, Gang: "a", Name: "p"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if !Less(&test.first, &test.second) || Less(&test.second, &test.first) {
				t.Errorf("want %+v strictly before %+v", test.first, test.second)
			}
		})
	}
}

func TestLessIsATotalOrderOnRandomKeys(t *testing.T) {
	random := rand.New(rand.NewSource(1))
	letters := []string{"", "a", "b"}
	for range 20000 {
		keys := make([]Key, 3)
		for i := range keys {
			keys[i] = Key{int32(random.Intn(2)), random.Intn(2) == 0, int64(random.Intn(2)), letters[random.Intn(3)], letters[random.Intn(3)]}
		}
		a, b, c := &keys[0], &keys[1], &keys[2]
		if Less(a, a) {
			t.Fatalf("%+v is before itself", a)
		}
		if *a != *b && Less(a, b) == Less(b, a) {
			t.Fatalf("%+v and %+v have no order", a, b)
		}
		if Less(a, b) && Less(b, c) && !Less(a, c) {
			t.Fatalf("not transitive: %+v %+v %+v", a, b, c)
		}
	}
}

func TestLessAllocatesNothing(t *testing.T) {
	a, b := &Key{Gang: "a", Name: "a-worker-0"}, &Key{Gang: "a", Name: "a-worker-1"}
	if n := testing.AllocsPerRun(1000, func() { Less(a, b) }); n != 0 {
		t.Errorf("Less allocates %v times", n)
	}
}

// FuzzLess: sorting must give one answer whatever the starting order.
func FuzzLess(f *testing.F) {
	f.Add(int32(1), true, int64(2), "a", "b", int32(1), false, int64(2), "a", "c")
	f.Fuzz(func(t *testing.T, p1 int32, b1 bool, s1 int64, g1, n1 string, p2 int32, b2 bool, s2 int64, g2, n2 string) {
		a, b := Key{p1, b1, s1, g1, n1}, Key{p2, b2, s2, g2, n2}
		forth, back := []Key{a, b}, []Key{b, a}
		compare := func(x, y Key) int {
			if Less(&x, &y) {
				return -1
			} else if Less(&y, &x) {
				return 1
			}
			return 0
		}
		slices.SortFunc(forth, compare)
		slices.SortFunc(back, compare)
		if forth[0] != back[0] || forth[1] != back[1] {
			t.Fatalf("two orders: %+v and %+v", forth, back)
		}
	})
}
