// Command libcni runs what it is told on libcni, so that another runtime can be compared with it.
//
// It reads one JSON document after another from standard input and answers each with one line.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"sort"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/types/create"
)

type order struct {
	// A CNI verb, or one of CONVERT (a result), PARSE and VALIDATE (a configuration), LOAD (a network from a
	// directory), CACHED (what the cache knows of an attachment).
	Verb     string
	Path     []string
	CacheDir string

	// The network as JSON text; for CONVERT the result.
	List string

	ContainerID    string
	NetNS          string
	IfName         string
	Args           [][2]string
	CapabilityArgs map[string]interface{}

	Valid []types.GCAttachment

	// Target of CONVERT.
	Version string

	// Of LOAD.
	Dir, Name string

	// Of VERSION.
	Plugin string

	// The time for the whole operation; 0 for as long as it takes.
	TimeoutMs int
}

type answer struct {
	Class   string      `json:"class"`
	Code    uint        `json:"code"`
	Msg     string      `json:"msg"`
	Details string      `json:"details"`
	Result  interface{} `json:"result"`
}

// network is what can be seen of a configuration once it is read.
type network struct {
	Name         string          `json:"name"`
	Version      string          `json:"version"`
	DisableCheck bool            `json:"disableCheck"`
	DisableGC    bool            `json:"disableGC"`
	Plugins      []networkPlugin `json:"plugins"`
}

type networkPlugin struct {
	Type         string   `json:"type"`
	Capabilities []string `json:"capabilities"`
	IPAM         string   `json:"ipam"`
}

func show(list *libcni.NetworkConfigList) network {
	shown := network{list.Name, list.CNIVersion, list.DisableCheck, list.DisableGC, []networkPlugin{}}
	for _, plugin := range list.Plugins {
		capabilities := []string{}
		for name, on := range plugin.Network.Capabilities {
			if on {
				capabilities = append(capabilities, name)
			}
		}
		sort.Strings(capabilities)
		shown.Plugins = append(shown.Plugins, networkPlugin{plugin.Network.Type, capabilities, plugin.Network.IPAM.Type})
	}
	return shown
}

func run(ctx context.Context, o order) (interface{}, error) {
	cni := libcni.NewCNIConfigWithCacheDir(o.Path, o.CacheDir, nil)
	switch o.Verb {
	case "CONVERT":
		result, err := create.CreateFromBytes([]byte(o.List))
		if err != nil {
			return nil, err
		}
		return result.GetAsVersion(o.Version)
	case "LOAD":
		list, err := libcni.LoadNetworkConf(o.Dir, o.Name)
		if err != nil {
			return nil, err
		}
		return show(list), nil
	case "VERSION":
		info, err := cni.GetVersionInfo(ctx, o.Plugin)
		if err != nil {
			return nil, err
		}
		return info.SupportedVersions(), nil
	case "CACHED":
		return cni.GetCachedAttachments(o.ContainerID)
	}

	list, err := libcni.NetworkConfFromBytes([]byte(o.List))
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	rt := &libcni.RuntimeConf{
		ContainerID:    o.ContainerID,
		NetNS:          o.NetNS,
		IfName:         o.IfName,
		Args:           o.Args,
		CapabilityArgs: o.CapabilityArgs,
	}
	switch o.Verb {
	case "PARSE":
		return show(list), nil
	case "VALIDATE":
		return cni.ValidateNetworkList(ctx, list)
	case "ADD":
		return cni.AddNetworkList(ctx, list, rt)
	case "DEL":
		return nil, cni.DelNetworkList(ctx, list, rt)
	case "CHECK":
		return nil, cni.CheckNetworkList(ctx, list, rt)
	case "STATUS":
		return nil, cni.GetStatusNetworkList(ctx, list)
	case "GC":
		return nil, cni.GCNetworkList(ctx, list, &libcni.GCArgs{ValidAttachments: o.Valid})
	}
	return nil, fmt.Errorf("unknown verb %q", o.Verb)
}

// classify says how a call failed. libcni has a type for what plugins report, which it also uses, with code 0, for
// whatever else becomes of a process; the rest is text.
func classify(ctx context.Context, err error) string {
	has := func(texts ...string) bool {
		for _, text := range texts {
			if strings.Contains(err.Error(), text) {
				return true
			}
		}
		return false
	}
	var reported *types.Error
	if errors.As(err, &reported) {
		own := reported.Code == 0 && (reported.Msg == "" || strings.HasPrefix(reported.Msg, "netplugin failed"))
		switch {
		case !own:
			return "reported"
		case ctx.Err() != nil:
			return "timeout"
		case has("fork/exec"):
			return "cannot start"
		case has(": signal: "):
			return "signal"
		}
		return "no error object"
	}
	switch {
	case strings.HasPrefix(err.Error(), "configuration:"):
		return "bad configuration"
	case has("failed to find plugin"):
		return "not found"
	case has("does not support the CHECK command"):
		return "no CHECK"
	case has("does not support config version"):
		return "version not supported"
	}
	return "unusable"
}

func answerTo(o order) answer {
	ctx, cancel := context.Background(), func() {}
	if o.TimeoutMs > 0 {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(o.TimeoutMs)*time.Millisecond)
	}
	defer cancel()
	result, err := run(ctx, o)
	if err == nil {
		return answer{Class: "ok", Result: result}
	}
	a := answer{Class: classify(ctx, err), Msg: err.Error()}
	var reported *types.Error
	if errors.As(err, &reported) && a.Class == "reported" {
		a.Code, a.Msg, a.Details = reported.Code, reported.Msg, reported.Details
	}
	return a
}

func main() {
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var o order
		if err := in.Decode(&o); err == io.EOF {
			return
		} else if err != nil {
			log.Fatal(err)
		}
		if err := out.Encode(answerTo(o)); err != nil {
			log.Fatal(err)
		}
	}
}
