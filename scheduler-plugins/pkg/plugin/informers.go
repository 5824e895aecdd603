package plugin

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"coach.dev/scheduler-plugins/pkg/api"
	"coach.dev/scheduler-plugins/pkg/identity"
	"coach.dev/scheduler-plugins/pkg/plugin/metrics"
)

// nodeActions are the changes of a node that can add capacity: a new node, one that grew, lost a taint or a cordon, or got a label.
const nodeActions = fwk.Add | fwk.UpdateNodeAllocatable | fwk.UpdateNodeTaint | fwk.UpdateNodeLabel

// start notes a profile and, for the first one, begins to watch pods, nodes and Gang objects.
func (s *State) start(ctx context.Context, handle fwk.Handle, kind profile) error {
	s.mu.Lock()
	s.profiles[handle.ProfileName()] = kind
	if kind == coachProfile && !s.serving && s.args.DebugAddress != "" && handle.KubeConfig() != nil {
		s.serving = true
		defer func() { go s.serve(ctx, s.args.DebugAddress) }()
	}
	first := !s.started
	s.started = true
	s.mu.Unlock()
	if !first {
		return nil
	}
	metrics.Register(func() (held, binding float64) { return s.gangPods.UnboundCoreSeconds(s.clock.Now()) })
	s.handle = handle
	s.pods = handle.SharedInformerFactory().Core().V1().Pods().Lister()
	pods, err := handle.SharedInformerFactory().Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { s.podChanged(ctx, object.(*v1.Pod)) },
		UpdateFunc: func(_, object any) { s.podChanged(ctx, object.(*v1.Pod)) },
		DeleteFunc: func(object any) {
			if last, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = last.Obj
			}
			if pod, ok := object.(*v1.Pod); ok {
				s.podDeleted(pod)
			}
		},
	})
	if err != nil {
		return err
	}
	if err := s.watchNodes(handle); err != nil {
		return err
	}
	synced := []cache.InformerSynced{pods.HasSynced}
	if handle.KubeConfig() != nil {
		if s.client, err = dynamic.NewForConfig(handle.KubeConfig()); err != nil {
			return err
		}
		factory := dynamicinformer.NewDynamicSharedInformerFactory(s.client, 0)
		gangs, err := factory.ForResource(api.Resource).Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(object any) { s.gangChanged(ctx, object) },
			UpdateFunc: func(_, object any) { s.gangChanged(ctx, object) },
			DeleteFunc: func(object any) {
				if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(object); err == nil {
					namespace, name, _ := cache.SplitMetaNamespaceKey(key)
					s.removeGang(identity.Key{Namespace: namespace, Job: name})
				}
			},
		})
		if err != nil {
			return err
		}
		factory.Start(ctx.Done())
		synced = append(synced, gangs.HasSynced)
	}
	go func() {
		// Until all objects that exist are seen, a job's age and its members are unknown: nothing is let into the queue.
		if !cache.WaitForCacheSync(ctx.Done(), synced...) {
			return
		}
		s.synced.Store(true)
		for _, key := range s.gangPods.Gangs() {
			s.requeue.Gang(key, 0)
		}
		go s.preemption.run(ctx)
		s.requeue.Run(ctx, s)
	}()
	go s.resync(ctx)
	return nil
}

// watchNodes for the members that are held before the queue, which get no queueing hints. It also drops the plans that count on a node
// that is gone, before a member comes to it. They are made again in a moment: the scheduler's snapshot may still contain the node.
func (s *State) watchNodes(handle fwk.Handle) error {
	_, err := handle.SharedInformerFactory().Core().V1().Nodes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { s.requeue.NodeChanged() },
		UpdateFunc: func(old, changed any) {
			for _, event := range framework.NodeSchedulingPropertiesChange(changed.(*v1.Node), old.(*v1.Node)) {
				if event.ActionType&nodeActions != 0 {
					s.requeue.NodeChanged()
				}
			}
		},
		DeleteFunc: func(object any) {
			if name, err := cache.DeletionHandlingMetaNamespaceKeyFunc(object); err == nil {
				for _, key := range s.gangPods.GangsPlannedOn(name) {
					s.dropPlan(key, 100*time.Millisecond)
				}
			}
		},
	})
	return err
}

// gangChanged handles a Gang object that was added or changed. One that cannot be decoded counts as not created.
func (s *State) gangChanged(ctx context.Context, object any) {
	gang, err := api.FromObject(object)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Failed to decode a Gang object")
		return
	}
	s.setGang(gang)
}

func (s *State) setGang(gang *api.Gang) {
	s.mu.Lock()
	s.gangs[gang.Key()] = gang
	s.mu.Unlock()
	s.requeue.Gang(gang.Key(), 0)
	if gang.Status.Draining != nil {
		s.preemption.queue.AddAfter(gang.Key(), 0)
	}
}

// object of a gang, or nil.
func (s *State) object(key identity.Key) *api.Gang {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.gangs[key]
}

func (s *State) removeGang(key identity.Key) {
	s.mu.Lock()
	delete(s.gangs, key)
	s.mu.Unlock()
	s.endReturn(key, true)
	s.requeue.Gang(key, 0)
}
