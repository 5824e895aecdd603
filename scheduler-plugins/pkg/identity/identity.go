// Package identity says which gang a pod belongs to and which role it plays there.
//
// A gang is (namespace, job). Both come from labels, never from parts of a pod's name: the functions of a job stay warm
// from epoch to epoch, so the identity must outlive every pod and contain no epoch.
package identity

import (
	"cmp"
	"fmt"
)

// Labels that make a pod a member of a gang. A pod with none of them is not ours.
const (
	JobLabel  = "coach.dev/job"
	RoleLabel = "coach.dev/role"
	// IndexLabel numbers the members of a role: 0, 1 ... It only decides their order.
	IndexLabel = "coach.dev/index"
)

// Role is one of the three kinds of process in a parameter-server group (thesis section 3.2).
type Role string

const (
	Scheduler Role = "scheduler"
	Server    Role = "server"
	Worker    Role = "worker"
)

// Roles in the order in which they are counted, planned and printed.
var Roles = [...]Role{Scheduler, Server, Worker}

// Rank gives the position of a role in Roles, and false for a word that is no role.
func (r Role) Rank() (int, bool) {
	for i, known := range Roles {
		if r == known {
			return i, true
		}
	}
	return 0, false
}

// Key names a gang.
type Key struct {
	Namespace string
	Job       string
}

func (k Key) String() string { return k.Namespace + "/" + k.Job }

// Compare orders keys by namespace, then job.
func (k Key) Compare(other Key) int {
	return cmp.Or(cmp.Compare(k.Namespace, other.Namespace), cmp.Compare(k.Job, other.Job))
}

// Member is what the labels of a pod say.
type Member struct {
	Gang Key
	Role Role
}

// Of reads a pod's labels. ours is false for a pod without a job label: such a pod is scheduled as if the plugins were
// not there. A pod of ours whose role is missing or unknown gives an error: it is held.
func Of(namespace string, labels map[string]string) (member Member, ours bool, err error) {
	job, ours := labels[JobLabel]
	if !ours {
		return Member{}, false, nil
	}
	member = Member{Gang: Key{Namespace: namespace, Job: job}, Role: Role(labels[RoleLabel])}
	if job == "" {
		return member, true, fmt.Errorf("label %s is empty: name the job there", JobLabel)
	}
	if _, known := member.Role.Rank(); !known {
		return member, true, fmt.Errorf("label %s is %q, not one of %v", RoleLabel, labels[RoleLabel], Roles)
	}
	return member, true, nil
}
