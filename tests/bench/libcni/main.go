// Command libcni attaches and detaches with libcni, to be compared with the other contestants.
//
// It reads orders, lines of JSON, from standard input, and answers each with one line.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containernetworking/cni/libcni"
)

// order and batch are the types of tests/bench/src/protocol.rs.
type order struct {
	List  string   `json:"list"`
	NetNS []string `json:"netns"`
	Ops   int      `json:"ops"`
}

type batch struct {
	WallNs   int64   `json:"wall_ns"`
	AddNs    []int64 `json:"add_ns"`
	DelNs    []int64 `json:"del_ns"`
	Own      cpu     `json:"own"`
	Children cpu     `json:"children"`
	Memory   memory  `json:"memory"`
}

type cpu struct {
	UserNs int64 `json:"user_ns"`
	SysNs  int64 `json:"sys_ns"`
}

type memory struct {
	RssKib  int64 `json:"rss_kib"`
	AnonKib int64 `json:"anon_kib"`
	PeakKib int64 `json:"peak_kib"`
}

// attach attaches and detaches one lane's container, ops times.
func attach(cni *libcni.CNIConfig, list *libcni.NetworkConfigList, lane int, netns string, add, del []int64) error {
	ctx := context.Background()
	for i := range add {
		rt := &libcni.RuntimeConf{
			ContainerID: fmt.Sprintf("c%d-%d", lane, i),
			NetNS:       netns,
			IfName:      "net1",
			Args:        [][2]string{{"IgnoreUnknown", "1"}},
		}
		begin := time.Now()
		if _, err := cni.AddNetworkList(ctx, list, rt); err != nil {
			return fmt.Errorf("ADD: %w", err)
		}
		added := time.Now()
		if err := cni.DelNetworkList(ctx, list, rt); err != nil {
			return fmt.Errorf("DEL: %w", err)
		}
		add[i], del[i] = added.Sub(begin).Nanoseconds(), time.Since(added).Nanoseconds()
	}
	return nil
}

func run(cni *libcni.CNIConfig, o order) (batch, error) {
	list, err := libcni.NetworkConfFromBytes([]byte(o.List))
	if err != nil {
		return batch{}, err
	}
	lanes := len(o.NetNS)
	b := batch{AddNs: make([]int64, lanes*o.Ops), DelNs: make([]int64, lanes*o.Ops)}
	errs := make([]error, lanes)
	own, children := used(syscall.RUSAGE_SELF), used(syscall.RUSAGE_CHILDREN)
	begin := time.Now()
	var all sync.WaitGroup
	for lane, netns := range o.NetNS {
		all.Add(1)
		go func() {
			defer all.Done()
			from, to := lane*o.Ops, (lane+1)*o.Ops
			errs[lane] = attach(cni, list, lane, netns, b.AddNs[from:to], b.DelNs[from:to])
		}()
	}
	all.Wait()
	b.WallNs = time.Since(begin).Nanoseconds()
	b.Own, b.Children = used(syscall.RUSAGE_SELF).since(own), used(syscall.RUSAGE_CHILDREN).since(children)
	for _, err := range errs {
		if err != nil {
			return batch{}, err
		}
	}
	b.Memory, err = held()
	return b, err
}

func used(who int) cpu {
	var usage syscall.Rusage
	if err := syscall.Getrusage(who, &usage); err != nil {
		log.Fatal(err)
	}
	return cpu{UserNs: usage.Utime.Nano(), SysNs: usage.Stime.Nano()}
}

func (c cpu) since(before cpu) cpu {
	return cpu{UserNs: c.UserNs - before.UserNs, SysNs: c.SysNs - before.SysNs}
}

func held() (memory, error) {
	file, err := os.Open("/proc/self/status")
	if err != nil {
		return memory{}, err
	}
	defer file.Close()
	var m memory
	fields := map[string]*int64{"VmRSS:": &m.RssKib, "RssAnon:": &m.AnonKib, "VmHWM:": &m.PeakKib}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) < 2 || fields[words[0]] == nil {
			continue
		}
		if _, err := fmt.Sscan(words[1], fields[words[0]]); err != nil {
			return m, err
		}
	}
	return m, lines.Err()
}

func main() {
	path := flag.String("path", "", "directories of the plugins, colon-separated")
	cache := flag.String("cache", "", "directory of libcni's cache")
	gomaxprocs := flag.String("plugins-gomaxprocs", "", "GOMAXPROCS of the plugins")
	flag.Parse()
	// This process has read its own by now; plugins inherit what is set here.
	if *gomaxprocs != "" {
		if err := os.Setenv("GOMAXPROCS", *gomaxprocs); err != nil {
			log.Fatal(err)
		}
	}
	cni := libcni.NewCNIConfigWithCacheDir(strings.Split(*path, ":"), *cache, nil)
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var o order
		if err := in.Decode(&o); err == io.EOF {
			return
		} else if err != nil {
			log.Fatal(err)
		}
		b, err := run(cni, o)
		if err != nil {
			log.Fatal(err)
		}
		if err := out.Encode(b); err != nil {
			log.Fatal(err)
		}
	}
}
