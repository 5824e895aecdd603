package plugin

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"coach.dev/scheduler-plugins/pkg/api"
	"coach.dev/scheduler-plugins/pkg/identity"
)

// start notes a profile and, for the first one, begins to watch pods and Gang objects.
func (s *State) start(ctx context.Context, handle fwk.Handle, kind profile) error {
	s.mu.Lock()
	s.profiles[handle.ProfileName()] = kind
	if kind == coachProfile && !s.serving && s.knobs.DebugAddress != "" && handle.KubeConfig() != nil {
		s.serving = true
		defer func() { go s.serve(ctx, s.knobs.DebugAddress) }()
	}
	first := !s.started
	s.started = true
	s.mu.Unlock()
	if !first {
		return nil
	}
	register(func() (held, binding float64) { return s.ledger.Unbound(s.clock.Now()) })
	s.handle = handle
	s.pods = handle.SharedInformerFactory().Core().V1().Pods().Lister()
	watching, err := handle.SharedInformerFactory().Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { s.observe(ctx, object.(*v1.Pod)) },
		UpdateFunc: func(_, object any) { s.observe(ctx, object.(*v1.Pod)) },
		DeleteFunc: func(object any) {
			if lost, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = lost.Obj
			}
			if pod, ok := object.(*v1.Pod); ok {
				s.forget(ctx, pod)
			}
		},
	})
	if err != nil {
		return err
	}
	if err := s.watchNodes(ctx, handle); err != nil {
		return err
	}
	seen := []cache.InformerSynced{watching.HasSynced}
	if handle.KubeConfig() != nil {
		if s.client, err = dynamic.NewForConfig(handle.KubeConfig()); err != nil {
			return err
		}
		factory := dynamicinformer.NewDynamicSharedInformerFactory(s.client, 0)
		watching, err := factory.ForResource(api.Resource).Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(object any) { s.read(ctx, object) },
			UpdateFunc: func(_, object any) { s.read(ctx, object) },
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
		seen = append(seen, watching.HasSynced)
	}
	go func() {
		// Before everything that exists was seen, a job's age and its members are guesses: nothing is let into the queue.
		if !cache.WaitForCacheSync(ctx.Done(), seen...) {
			return
		}
		s.ready.Store(true)
		for _, key := range s.ledger.Gangs() {
			s.wake.gang(key, 0)
		}
		go s.drains.run(ctx)
		s.wake.run(ctx)
	}()
	go s.heal(ctx)
	return nil
}

// read a Gang object that was added or changed. One that cannot be read counts as not created.
func (s *State) read(ctx context.Context, object any) {
	gang, err := api.FromObject(object)
	if err != nil {
		klog.FromContext(ctx).Error(err, "A Gang object cannot be read")
		return
	}
	s.setGang(gang)
}

func (s *State) setGang(gang *api.Gang) {
	s.mu.Lock()
	s.gangs[gang.Key()] = gang
	s.mu.Unlock()
	s.wake.gang(gang.Key(), 0)
	if gang.Status.Draining != nil {
		s.drains.look(gang.Key(), 0)
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
	s.returned(key, true)
	s.wake.gang(key, 0)
}

// serve /debug/gangs until the scheduler ends.
func (s *State) serve(ctx context.Context, address string) {
	logger := klog.FromContext(ctx)
	mux := http.NewServeMux()
	mux.Handle("GET /debug/gangs", s)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		logger.Error(err, "No /debug/gangs; set debugAddress of CoachGang to a free address, or to nothing")
		return
	}
	go func() {
		<-ctx.Done()
		_ = server.Close()
	}()
	logger.Info("Serving /debug/gangs", "address", listener.Addr())
	if err := server.Serve(listener); err != nil && !errors.Is(err, http.ErrServerClosed) {
		logger.Error(err, "No /debug/gangs any more")
	}
}
