//! Timeline of the air: use of the channels, losses, and lengths of queues.
//!
//! The result is a single page without external resources: a lane for each station, a bar for each
//! transmission, a line for each queue, and bands for the slots of a shared radio. The mouse wheel
//! zooms at the pointer, dragging moves the view. It helps to explain an unexpected result.

use std::fmt::Write as _;

use hawser_netem::air::{Kind, StationId, Transmitted};
use hawser_units::Instant;

use hawser_recording::page::{self, quoted};

/// Slot of a shared radio: station, label, start and end.
pub type Slot = (StationId, String, Instant, Instant);

/// Timeline of the air.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// Title of the page.
    pub title: String,
    /// Name of each station, in the order of their ids.
    pub stations: Vec<String>,
    /// Slots of shared radios.
    pub slots: Vec<Slot>,
    /// Changes of queue lengths.
    pub queues: Vec<(StationId, Instant, usize)>,
}

impl Timeline {
    /// Returns the page. Units: microseconds within the page.
    #[must_use]
    pub fn html(&self, log: &[Transmitted]) -> String {
        let mut sent = String::new();
        for one in log {
            let kind = match one.kind {
                Kind::Data => 0,
                Kind::Broadcast => 1,
                Kind::Ack | Kind::BlockAck => 2,
                Kind::Rts | Kind::Cts => 3,
            };
            let length = micros(one.end) - micros(one.start);
            let to = one.to.map_or(-1, |to| i32::from(to.0));
            let _ = write!(
                sent,
                "[{},{},{},{to},{kind},{},{}],",
                micros(one.start),
                length,
                one.from.0,
                u8::from(one.read),
                one.channel
            );
        }
        let mut slots = String::new();
        for (station, name, from, until) in &self.slots {
            let (from, until) = (micros(*from), micros(*until));
            let _ = write!(slots, "[{},{},{from},{until}],", station.0, quoted(name));
        }
        let mut queues = String::new();
        for (station, at, length) in &self.queues {
            let _ = write!(queues, "[{},{},{length}],", station.0, micros(*at));
        }
        let names: Vec<String> = self.stations.iter().map(|name| quoted(name)).collect();
        PAGE.replace("TITLE", &page::plain(&self.title))
            .replace("\"NAMES\"", &format!("[{}]", names.join(",")))
            .replace("\"SENT\"", &format!("[{sent}]"))
            .replace("\"SLOTS\"", &format!("[{slots}]"))
            .replace("\"QUEUES\"", &format!("[{queues}]"))
    }
}

fn micros(at: Instant) -> u64 {
    at.as_nanos() / 1_000
}

const PAGE: &str = r##"<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>TITLE</title>
<style>body{font:14px sans-serif;margin:1em}canvas{width:100%;border:1px solid #ccc;cursor:grab}i{display:inline-block;width:1em;height:.8em;margin:0 .3em 0 1em}</style></head>
<body><h1>TITLE</h1>
<p>Wheel: zoom. Drag: move.
<i style="background:#27c"></i>data<i style="background:#c33"></i>not read<i style="background:#999"></i>answer<i style="background:#2a6"></i>broadcast<i style="background:#a6c"></i>RTS, CTS<i style="background:#fe9"></i>slot<i style="background:#e80;height:2px"></i>queue</p>
<canvas id="c"></canvas><p id="t">&nbsp;</p>
<script>
const names="NAMES",sent="SENT",slots="SLOTS",queues="QUEUES",lane=48,left=110,top_=20;
const c=document.getElementById("c"),g=c.getContext("2d"),colours=["#27c","#2a6","#999","#a6c"];
let end=1;for(const s of sent)end=Math.max(end,s[0]+s[1]);for(const s of slots)end=Math.max(end,s[3]);
let from=0,span=Math.min(end,50000),longest=1;for(const q of queues)longest=Math.max(longest,q[2]);
const of=names.map((_,n)=>queues.filter(q=>q[0]===n));
const width=()=>c.width-left,x=t=>left+(t-from)/span*width();
function first(a,t){let l=0,h=a.length;while(l<h){const m=(l+h)>>1;if(a[m][0]<t)l=m+1;else h=m}return l}
function draw(){c.width=c.clientWidth;c.height=top_+names.length*lane;g.font="12px sans-serif";
for(const s of slots)if(s[3]>from&&s[2]<from+span){g.fillStyle="#fe9";const a=Math.max(left,x(s[2]));g.fillRect(a,top_+s[0]*lane,x(s[3])-a-1,lane-6);g.fillStyle="#a80";g.fillText(s[1],a+2,top_+s[0]*lane+10)}
for(let n=first(sent,from-20000);n<sent.length&&sent[n][0]<from+span;n++){const s=sent[n];if(s[0]+s[1]<from)continue;g.fillStyle=s[5]?colours[s[4]]:"#c33";const a=Math.max(left,x(s[0]));g.fillRect(a,top_+s[2]*lane+14,Math.max(1,x(s[0]+s[1])-a),lane-24)}
g.strokeStyle="#e80";of.forEach((list,n)=>{g.beginPath();let y=top_+(n+1)*lane-8,seen=false;for(const q of list){if(q[1]>from+span)break;const h=top_+(n+1)*lane-8-q[2]/longest*(lane-12);if(q[1]>=from){if(!seen){g.moveTo(left,y);seen=true}g.lineTo(x(q[1]),y);g.lineTo(x(q[1]),h)}y=h}if(seen)g.stroke()});
g.fillStyle="#fff";g.fillRect(0,0,left,c.height);g.fillStyle="#000";names.forEach((s,n)=>g.fillText(s,4,top_+n*lane+26));
const step=Math.pow(10,Math.floor(Math.log10(span/4)));for(let t=Math.ceil(from/step)*step;t<from+span;t+=step)if(x(t)>=left){g.fillRect(x(t),12,1,6);g.fillText((t/1000).toFixed(step<1000?3:0)+" ms",x(t)+3,12)}}
c.onwheel=e=>{e.preventDefault();const at=from+(e.offsetX-left)/width()*span,k=e.deltaY>0?1.25:.8;span=Math.max(50,Math.min(end,span*k));from=Math.max(0,at-(e.offsetX-left)/width()*span);draw()};
let held=null;c.onmousedown=e=>held=[e.offsetX,from];window.onmouseup=()=>held=null;
c.onmousemove=e=>{if(held){from=Math.max(0,held[1]-(e.offsetX-held[0])/width()*span);draw();return}
const t=from+(e.offsetX-left)/width()*span,row=Math.floor((e.offsetY-top_)/lane);const s=sent.slice(first(sent,t-20000),first(sent,t)).find(s=>s[2]===row&&s[0]+s[1]>=t);
document.getElementById("t").textContent=s?names[s[2]]+" to "+(s[3]<0?"everybody":names[s[3]])+", channel "+s[6]+", "+s[1]+" us at "+(s[0]/1000).toFixed(3)+" ms"+(s[5]?"":", not read"):" "};
window.onresize=draw;sent.sort((a,b)=>a[0]-b[0]);draw();
</script></body></html>
"##;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_what_was_sent_and_escapes_names() {
        let at = |us: u64| Instant::from_nanos(us * 1_000);
        let log = [Transmitted {
            from: StationId(0),
            to: Some(StationId(1)),
            kind: Kind::Data,
            channel: 36,
            start: at(100),
            end: at(348),
            read: false,
        }];
        let timeline = Timeline {
            title: "one <frame>".to_owned(),
            stations: vec!["access point".to_owned(), "</script>".to_owned()],
            slots: vec![(StationId(1), "home".to_owned(), at(0), at(1000))],
            queues: vec![(StationId(0), at(100), 3)],
        };
        let page = timeline.html(&log);
        assert!(page.contains("[100,248,0,1,0,0,36],"));
        assert!(page.contains("[1,\"home\",0,1000],") && page.contains("[0,100,3],"));
        assert_eq!(page.matches("</script>").count(), 1);
        assert!(!page.contains("<frame>"));
    }
}
