package plugin

import (
	"time"

	"coach.dev/scheduler-plugins/pkg/identity"
	"coach.dev/scheduler-plugins/pkg/order"
)

// maxOnTheWay is how many pods may be on their way to a node before the next gang is planned. A scheduler plans faster than an API
// server binds: without this bound a backlog of gangs would hold room for seconds before it is used, and each binding under way costs
// a goroutine and, by the hundred, another connection.
const maxOnTheWay = 128

// turn of a gang that was let into the queue to be planned.
type turn struct {
	members int
	since   time.Time
}

// lateTurn is after what time a gang that was let in, or a pod on its way, holds the others up no more: it waits for a volume, say.
const lateTurn = 5 * time.Second

// admit a gang to a plan, unless too many pods are on their way already.
func (s *State) admit(v *view) bool {
	seats := s.ledger.OnTheWay(s.clock.Now(), lateTurn)
	at := s.order(v)
	s.mu.Lock()
	defer s.mu.Unlock()
	if seats+s.expected(v.key) >= maxOnTheWay {
		s.paced[v.key] = at
		s.wake.queue.AddAfter(bindingsDone, lateTurn) // at the latest
		return false
	}
	delete(s.paced, v.key)
	s.untried[v.key] = turn{v.missing.Total(), s.clock.Now()}
	return true
}

// expected is how many pods the gangs that were let in will send on their way; it assumes the lock.
func (s *State) expected(but identity.Key) int {
	members := 0
	for key, turn := range s.untried {
		if key != but && s.clock.Since(turn.since) < lateTurn {
			members += turn.members
		}
	}
	return members
}

// next is the first gang in queue order that comes when bindings are through; none while too many are under way. It is no more among
// those that wait for that: who is not let in now waits for something else.
func (s *State) next() (identity.Key, bool) {
	seats := s.ledger.OnTheWay(s.clock.Now(), lateTurn)
	s.mu.Lock()
	defer s.mu.Unlock()
	var key identity.Key
	var first *order.Key
	for paced, at := range s.paced {
		if first == nil || order.Less(&at, first) {
			key, first = paced, &at
		}
	}
	if first == nil || seats+s.expected(key) >= maxOnTheWay {
		return identity.Key{}, false
	}
	delete(s.paced, key)
	return key, true
}

// yield the turn of a gang that cannot be planned now.
func (s *State) yield(key identity.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tried(key)
}

// tried takes a gang from those that are on their way to a plan. The next ones may come, and after the last of them the wanted members
// of others, which were held meanwhile. It assumes the lock.
func (s *State) tried(key identity.Key) {
	before := len(s.untried) + len(s.paced)
	delete(s.untried, key)
	delete(s.paced, key)
	switch left := len(s.untried) + len(s.paced); {
	case left == before:
	case left == 0:
		s.wake.wanted()
	default:
		s.wake.turn()
	}
}

// someoneNeeds reports whether another gang is on its way to a plan for its needed members.
func (s *State) someoneNeeds(but identity.Key) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	others := len(s.untried) + len(s.paced)
	if _, in := s.untried[but]; in {
		others--
	}
	if _, waits := s.paced[but]; waits {
		others--
	}
	return others > 0
}
