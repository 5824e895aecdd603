package identity

import "testing"

func TestOf(t *testing.T) {
	tests := map[string]struct {
		labels  map[string]string
		want    Member
		ours    bool
		invalid bool
	}{
		"a pod without a job label is not ours": {labels: map[string]string{"app": "web"}},
		"a member of a gang": {
			labels: map[string]string{JobLabel: "lenet", RoleLabel: "worker"},
			want:   Member{Key{"default", "lenet"}, Worker}, ours: true},
		"a pod with a job and no role is held": {
			labels: map[string]string{JobLabel: "lenet"}, want: Member{Gang: Key{"default", "lenet"}}, ours: true, invalid: true},
		"a pod with a misspelt role is held": {
			labels: map[string]string{JobLabel: "lenet", RoleLabel: "Worker"},
			want:   Member{Key{"default", "lenet"}, "Worker"}, ours: true, invalid: true},
		"a pod with an empty job name is held": {
			labels: map[string]string{JobLabel: "", RoleLabel: "worker"}, want: Member{Key{"default", ""}, Worker}, ours: true, invalid: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			member, ours, err := Of("default", test.labels)
			if member != test.want || ours != test.ours || (err != nil) != test.invalid {
				t.Errorf("got %+v, %v, %v", member, ours, err)
			}
		})
	}
}

func TestJobsOfOneNameInTwoNamespacesAreTwoGangs(t *testing.T) {
	labels := map[string]string{JobLabel: "lenet", RoleLabel: "server"}
	a, _, _ := Of("team-a", labels)
	b, _, _ := Of("team-b", labels)
	if a.Gang == b.Gang || a.Gang.Compare(b.Gang) >= 0 || b.Gang.Compare(a.Gang) <= 0 {
		t.Errorf("%v and %v", a.Gang, b.Gang)
	}
}
