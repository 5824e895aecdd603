package thesis

import (
	"testing"

	"coach.dev/scheduler-plugins/pkg/identity"
)

// The cases are tests/conformance/filter.yaml; this one no case file can hold.
func TestAMisspeltRoleStandsForNoType(t *testing.T) {
	gang := identity.Key{Namespace: "default", Job: "a"}
	others := []identity.Member{{Gang: gang, Role: identity.Scheduler}, {Gang: gang, Role: "serverr"}}
	if AllTypesPresent(identity.Member{Gang: gang, Role: identity.Worker}, others) {
		t.Error("passed without a server")
	}
	elsewhere := identity.Member{Gang: identity.Key{Namespace: "other", Job: "a"}, Role: identity.Server}
	if AllTypesPresent(identity.Member{Gang: gang, Role: identity.Worker}, append(others, elsewhere)) {
		t.Error("passed with the server of a job of the same name in another namespace")
	}
}
