package plugin

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// nodeActions are the changes of a node that can make room: a new one, one that grew, lost a taint or a cordon, or got a label.
const nodeActions = fwk.Add | fwk.UpdateNodeAllocatable | fwk.UpdateNodeTaint | fwk.UpdateNodeLabel

// watchNodes for the members that are held before the queue: the scheduler tells no hints about what ends their wait. It also gives
// up the plans that count on a node that is gone, instead of waiting until a member comes to it.
func (s *State) watchNodes(ctx context.Context, handle fwk.Handle) error {
	_, err := handle.SharedInformerFactory().Core().V1().Nodes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { s.wake.node() },
		UpdateFunc: func(old, changed any) {
			for _, event := range framework.NodeSchedulingPropertiesChange(changed.(*v1.Node), old.(*v1.Node)) {
				if event.ActionType&nodeActions != 0 {
					s.wake.node()
				}
			}
		},
		DeleteFunc: func(object any) {
			if name, err := cache.DeletionHandlingMetaNamespaceKeyFunc(object); err == nil {
				s.lost(ctx, handle, name)
			}
		},
	})
	return err
}

// lost drops the plans that count on a node. They are made again in a moment: the scheduler's snapshot may still show the node.
func (s *State) lost(ctx context.Context, handle fwk.Handle, node string) {
	for _, key := range s.ledger.PlannedOn(node) {
		s.drop(ctx, handle, key, 100*time.Millisecond)
	}
}
