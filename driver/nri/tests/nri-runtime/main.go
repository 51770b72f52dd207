// The runtime's side of NRI, as containerd and CRI-O have it, without containers: it does what the lines of JSON on
// its standard input say and writes the outcome of each as a line of JSON to its standard output.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	nrilog "github.com/containerd/nri/pkg/log"
)

// command is what to do. Sandbox and Container are ids.
type command struct {
	Do        string `json:"do"`
	Sandbox   string `json:"sandbox"`
	Container string `json:"container"`
	// Host puts the sandbox on the node's network.
	Host bool `json:"host"`
}

// outcome is how it went. Some have no command: "listening" says that plugins may connect, "plugins" that there are
// more or fewer of them now.
type outcome struct {
	Event   string      `json:"event"`
	Error   string      `json:"error,omitempty"`
	Millis  int64       `json:"millis"`
	Hooks   []*api.Hook `json:"hooks,omitempty"`
	Plugins int         `json:"plugins"`
}

// counter tells when the number of plugins changes.
type counter struct {
	sync.Mutex
	plugins int
	out     chan<- outcome
}

func (c *counter) UpdatePluginCount(count int) {
	c.Lock()
	defer c.Unlock()
	if c.plugins != count {
		c.plugins = count
		c.out <- outcome{Event: "plugins", Plugins: count}
	}
}

func (*counter) RecordPluginInvocation(string, string, error)                                      {}
func (*counter) RecordPluginLatency(string, string, time.Duration)                                 {}
func (*counter) RecordPluginAdjustments(string, string, *adaptation.ContainerAdjustment, int, int) {}

// silence is where NRI's own log goes.
type silence struct{}

func (silence) Debugf(context.Context, string, ...any) {}
func (silence) Infof(context.Context, string, ...any)  {}
func (silence) Warnf(context.Context, string, ...any)  {}
func (silence) Errorf(context.Context, string, ...any) {}

func main() {
	socket := flag.String("socket", "", "where to listen for plugins")
	plugins := flag.String("plugins", "", "an empty directory")
	timeout := flag.Duration("request-timeout", 2*time.Second, "how long plugins may take")
	sandboxes := flag.Int("sandboxes", 1, "how many sandboxes to synchronise, with a container each")
	padding := flag.Int("padding", 0, "bytes of annotation of each sandbox")
	flag.Parse()

	out := make(chan outcome)
	go func() {
		encoder := json.NewEncoder(os.Stdout)
		for o := range out {
			if err := encoder.Encode(o); err != nil {
				log.Fatal(err)
			}
		}
	}()

	synchronize := func(ctx context.Context, callback adaptation.SyncCB) error {
		var pods []*api.PodSandbox
		var containers []*api.Container
		for i := range *sandboxes {
			p := pod(fmt.Sprintf("listed-%d", i), false)
			p.Annotations = map[string]string{"padding": strings.Repeat("x", *padding)}
			pods = append(pods, p)
			containers = append(containers, container(p.Id, fmt.Sprintf("container-%d", i)))
		}
		_, err := callback(ctx, pods, containers)
		return err
	}
	update := func(context.Context, []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) {
		return nil, nil
	}
	nrilog.Set(silence{})
	adaptation.SetPluginRequestTimeout(*timeout)
	runtime, err := adaptation.New("simulated", "v1", synchronize, update,
		adaptation.WithSocketPath(*socket), adaptation.WithPluginPath(*plugins), adaptation.WithPluginConfigPath(*plugins),
		adaptation.WithMetrics(&counter{out: out}))
	if err != nil {
		log.Fatal(err)
	}
	if err := runtime.Start(); err != nil {
		log.Fatal(err)
	}
	out <- outcome{Event: "listening"}

	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var c command
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			log.Fatal(err)
		}
		start := time.Now()
		hooks, err := do(runtime, c)
		o := outcome{Event: c.Do, Millis: time.Since(start).Milliseconds(), Hooks: hooks}
		if err != nil {
			o.Error = err.Error()
		}
		out <- o
	}
}

func do(runtime *adaptation.Adaptation, c command) ([]*api.Hook, error) {
	ctx := context.Background()
	p := pod(c.Sandbox, c.Host)
	switch c.Do {
	case "run":
		return nil, runtime.RunPodSandbox(ctx, &api.RunPodSandboxRequest{Pod: p})
	case "stop":
		return nil, runtime.StopPodSandbox(ctx, &api.StopPodSandboxRequest{Pod: p})
	case "remove":
		return nil, runtime.RemovePodSandbox(ctx, &api.RemovePodSandboxRequest{Pod: p})
	case "create":
		r, err := runtime.CreateContainer(ctx, &api.CreateContainerRequest{Pod: p, Container: container(p.Id, c.Container)})
		return r.GetAdjust().GetHooks().GetCreateRuntime(), err
	case "stop-container":
		_, err := runtime.StopContainer(ctx, &api.StopContainerRequest{Pod: p, Container: container(p.Id, c.Container)})
		return nil, err
	case "remove-container":
		return nil, runtime.RemoveContainer(ctx, &api.RemoveContainerRequest{Pod: p, Container: container(p.Id, c.Container)})
	}
	return nil, fmt.Errorf("nothing is called %q", c.Do)
}

func pod(id string, host bool) *api.PodSandbox {
	namespaces := []*api.LinuxNamespace{{Type: "pid"}, {Type: "ipc"}, {Type: "mount"}}
	if !host {
		namespaces = append(namespaces, &api.LinuxNamespace{Type: "uts"},
			&api.LinuxNamespace{Type: "network", Path: "/run/netns/" + id})
	}
	return &api.PodSandbox{
		Id:          id,
		Uid:         "uid-of-" + id,
		Name:        "pod-of-" + id,
		Namespace:   "default",
		Labels:      map[string]string{"app": "web"},
		Annotations: map[string]string{"note": "first\nsecond"},
		Linux: &api.LinuxPodSandbox{
			Namespaces:   namespaces,
			CgroupParent: "/kubepods",
			Resources:    &api.LinuxResources{Memory: &api.LinuxMemory{Limit: api.Int64(1 << 30)}},
		},
		Pid: 4711,
	}
}

func container(sandbox, id string) *api.Container {
	return &api.Container{
		Id:           id,
		PodSandboxId: sandbox,
		Name:         "app",
		State:        api.ContainerState_CONTAINER_RUNNING,
		Args:         []string{"sleep", "inf"},
		Env:          []string{"A=b"},
		CDIDevices:   []*api.CDIDevice{{Name: "netclaim.dev/claim=1"}},
		Linux:        &api.LinuxContainer{OomScoreAdj: api.Int(100)},
	}
}
