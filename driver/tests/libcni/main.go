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

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/types/create"
)

type order struct {
	// A CNI verb, or CONVERT.
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
}

type answer struct {
	OK     bool         `json:"ok"`
	Code   uint         `json:"code"`
	Msg    string       `json:"msg"`
	Result types.Result `json:"result"`
}

func run(o order) (types.Result, error) {
	if o.Verb == "CONVERT" {
		result, err := create.CreateFromBytes([]byte(o.List))
		if err != nil {
			return nil, err
		}
		return result.GetAsVersion(o.Version)
	}

	list, err := libcni.NetworkConfFromBytes([]byte(o.List))
	if err != nil {
		return nil, err
	}
	cni := libcni.NewCNIConfigWithCacheDir(o.Path, o.CacheDir, nil)
	rt := &libcni.RuntimeConf{
		ContainerID:    o.ContainerID,
		NetNS:          o.NetNS,
		IfName:         o.IfName,
		Args:           o.Args,
		CapabilityArgs: o.CapabilityArgs,
	}
	ctx := context.Background()
	switch o.Verb {
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

func main() {
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var o order
		if err := in.Decode(&o); err == io.EOF {
			return
		} else if err != nil {
			log.Fatal(err)
		}
		result, err := run(o)
		a := answer{OK: err == nil, Result: result}
		if err != nil {
			a.Msg = err.Error()
			var reported *types.Error
			if errors.As(err, &reported) {
				a.Code = reported.Code
			}
		}
		if err := out.Encode(a); err != nil {
			log.Fatal(err)
		}
	}
}
